;; sticks: take one to three sticks in turn with the environment; whoever takes the last one wins.
;;
;; The opening is the number of sticks, 9 to 17, as `13:`. A turn is 1, 2 or 3. The environment answers what it takes and
;; what is left, as `-2=8:`. A turn that is no legal move loses. The reward is 1 for taking the last stick.
(module
  (memory (export "memory") 1)
  (global $random (mut i64) (i64.const 0))
  (global $sticks (mut i32) (i32.const 0))
  (global $won (mut i32) (i32.const 0))
  (global $end (mut i32) (i32.const 0)) ;; where the text ends, which begins at address 0

  ;; A number below `limit`: splitmix64, whose state begins as the seed.
  (func $draw (param $limit i32) (result i32) (local $z i64)
    (global.set $random (i64.add (global.get $random) (i64.const 0x9E3779B97F4A7C15)))
    (local.set $z (global.get $random))
    (local.set $z (i64.mul
      (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 30))) (i64.const 0xBF58476D1CE4E5B9)))
    (local.set $z (i64.mul
      (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 27))) (i64.const 0x94D049BB133111EB)))
    (local.set $z (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 31))))
    (i32.wrap_i64 (i64.rem_u (local.get $z) (i64.extend_i32_u (local.get $limit)))))

  (func $put (param $character i32)
    (i32.store8 (global.get $end) (local.get $character))
    (global.set $end (i32.add (global.get $end) (i32.const 1))))

  (func $put_number (param $number i32)
    (if (i32.ge_u (local.get $number) (i32.const 10))
      (then (call $put_number (i32.div_u (local.get $number) (i32.const 10)))))
    (call $put (i32.add (i32.const 48) (i32.rem_u (local.get $number) (i32.const 10)))))

  ;; Turns lie behind the text. One that does not fit the page has no legal move in it either.
  (func (export "alloc") (param $size i32) (result i32) (i32.const 1024))

  (func (export "reset") (param $seed i64) (result i64)
    (global.set $random (local.get $seed))
    (global.set $sticks (i32.add (i32.const 9) (call $draw (i32.const 9))))
    (call $put_number (global.get $sticks))
    (call $put (i32.const 58)) ;; :
    (i64.extend_i32_u (global.get $end)))

  (func (export "step") (param $turn i32) (param $size i32) (result i64) (local $taken i32)
    (if (i32.ne (local.get $size) (i32.const 1)) (then (return (i64.const 0))))
    (local.set $taken (i32.sub (i32.load8_u (local.get $turn)) (i32.const 48)))
    (if (i32.or
          (i32.ge_u (i32.sub (local.get $taken) (i32.const 1)) (i32.const 3))
          (i32.gt_u (local.get $taken) (global.get $sticks)))
      (then (return (i64.const 0))))
    (global.set $sticks (i32.sub (global.get $sticks) (local.get $taken)))
    (if (i32.eqz (global.get $sticks))
      (then (global.set $won (i32.const 1)) (return (i64.const 0))))
    (local.set $taken (i32.add (i32.const 1) (call $draw (i32.const 3))))
    (if (i32.ge_u (local.get $taken) (global.get $sticks)) (then (return (i64.const 0)))) ;; it takes the last one
    (global.set $sticks (i32.sub (global.get $sticks) (local.get $taken)))
    (global.set $end (i32.const 0))
    (call $put (i32.const 45)) ;; -
    (call $put_number (local.get $taken))
    (call $put (i32.const 61)) ;; =
    (call $put_number (global.get $sticks))
    (call $put (i32.const 58)) ;; :
    (i64.extend_i32_u (global.get $end)))

  (func (export "reward") (param $finished i32) (result f64)
    (f64.convert_i32_u (i32.and (global.get $won) (local.get $finished)))))

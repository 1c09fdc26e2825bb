;; calculator: work out `47*63+58?` with a tool. The environment is the tool.
;;
;; A turn that is a call, such as `47*63`, is answered with its value, `2961`: two numbers of at most nine digits with
;; +, - or * between them. A turn that begins with # is the answer, and ends the episode: `#3019`. The reward is 1 if it is
;; right. Any other turn, and a fifth call, end the episode without reward.
(module
  (memory (export "memory") 1)
  (global $random (mut i64) (i64.const 0))
  (global $answer (mut i64) (i64.const 0))
  (global $calls (mut i32) (i32.const 0))
  (global $right (mut i32) (i32.const 0))
  (global $end (mut i32) (i32.const 0))  ;; where the text ends, which begins at address 0
  (global $at (mut i32) (i32.const 0))   ;; next byte of the turn
  (global $stop (mut i32) (i32.const 0)) ;; end of the turn

  ;; A number from 10 to 99 that is at least `least`: splitmix64, whose state begins as the seed.
  (func $draw (param $least i64) (result i64) (local $z i64)
    (global.set $random (i64.add (global.get $random) (i64.const 0x9E3779B97F4A7C15)))
    (local.set $z (global.get $random))
    (local.set $z (i64.mul
      (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 30))) (i64.const 0xBF58476D1CE4E5B9)))
    (local.set $z (i64.mul
      (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 27))) (i64.const 0x94D049BB133111EB)))
    (local.set $z (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 31))))
    (i64.add (local.get $least) (i64.rem_u (local.get $z) (i64.sub (i64.const 100) (local.get $least)))))

  (func $put (param $character i32)
    (i32.store8 (global.get $end) (local.get $character))
    (global.set $end (i32.add (global.get $end) (i32.const 1))))

  (func $put_number (param $number i64)
    (if (i64.lt_s (local.get $number) (i64.const 0))
      (then
        (call $put (i32.const 45)) ;; -
        (local.set $number (i64.sub (i64.const 0) (local.get $number)))))
    (if (i64.ge_s (local.get $number) (i64.const 10))
      (then (call $put_number (i64.div_s (local.get $number) (i64.const 10)))))
    (call $put (i32.add (i32.const 48) (i32.wrap_i64 (i64.rem_s (local.get $number) (i64.const 10))))))

  ;; The next byte of the turn, and 0 at its end.
  (func $peek (result i32)
    (if (result i32) (i32.lt_u (global.get $at) (global.get $stop))
      (then (i32.load8_u (global.get $at)))
      (else (i32.const 0))))

  (func $skip (global.set $at (i32.add (global.get $at) (i32.const 1))))

  ;; The number that comes next; -1 where none does, or one of more than nine digits.
  (func $number (result i64) (local $value i64) (local $digits i32) (local $digit i32)
    (block $done
      (loop $next
        (local.set $digit (i32.sub (call $peek) (i32.const 48)))
        (br_if $done (i32.ge_u (local.get $digit) (i32.const 10)))
        (local.set $value (i64.add
          (i64.mul (local.get $value) (i64.const 10)) (i64.extend_i32_u (local.get $digit))))
        (local.set $digits (i32.add (local.get $digits) (i32.const 1)))
        (call $skip)
        (br_if $next (i32.le_u (local.get $digits) (i32.const 9)))))
    (if (i32.ge_u (i32.sub (local.get $digits) (i32.const 1)) (i32.const 9)) (then (return (i64.const -1))))
    (local.get $value))

  ;; Turns lie behind the text. One that does not fit the page is neither a call nor an answer.
  (func (export "alloc") (param $size i32) (result i32) (i32.const 1024))

  (func (export "reset") (param $seed i64) (result i64) (local $a i64) (local $b i64) (local $c i64)
    (global.set $random (local.get $seed))
    (local.set $a (call $draw (i64.const 32)))
    (local.set $b (call $draw (i64.const 32)))
    (local.set $c (call $draw (i64.const 10)))
    (global.set $answer (i64.add (i64.mul (local.get $a) (local.get $b)) (local.get $c)))
    (call $put_number (local.get $a))
    (call $put (i32.const 42)) ;; *
    (call $put_number (local.get $b))
    (call $put (i32.const 43)) ;; +
    (call $put_number (local.get $c))
    (call $put (i32.const 63)) ;; ?
    (i64.extend_i32_u (global.get $end)))

  (func (export "step") (param $turn i32) (param $size i32) (result i64)
    (local $first i64) (local $second i64) (local $sign i32)
    (global.set $at (local.get $turn))
    (global.set $stop (i32.add (local.get $turn) (local.get $size)))
    (if (i32.eq (call $peek) (i32.const 35)) ;; #
      (then
        (call $skip)
        (global.set $right (i32.and
          (i64.eq (call $number) (global.get $answer)) (i32.eq (global.get $at) (global.get $stop))))
        (return (i64.const 0))))
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (local.set $first (call $number))
    (local.set $sign (call $peek))
    (call $skip)
    (local.set $second (call $number))
    (if (i32.or
          (i32.or (i64.lt_s (local.get $first) (i64.const 0)) (i64.lt_s (local.get $second) (i64.const 0)))
          (i32.or (i32.ne (global.get $at) (global.get $stop)) (i32.gt_u (global.get $calls) (i32.const 4))))
      (then (return (i64.const 0))))
    (if (i32.eq (local.get $sign) (i32.const 45))
      (then (local.set $second (i64.sub (local.get $first) (local.get $second))))
      (else (if (i32.eq (local.get $sign) (i32.const 43))
        (then (local.set $second (i64.add (local.get $first) (local.get $second))))
        (else
          (if (i32.ne (local.get $sign) (i32.const 42)) (then (return (i64.const 0))))
          (local.set $second (i64.mul (local.get $first) (local.get $second)))))))
    (global.set $end (i32.const 0))
    (call $put_number (local.get $second))
    (i64.extend_i32_u (global.get $end)))

  (func (export "reward") (param $finished i32) (result f64)
    (f64.convert_i32_u (i32.and (global.get $right) (local.get $finished)))))

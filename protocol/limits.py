"""Limits on what a peer may send, each with its reason.

A limit is checked before the work it bounds: size first, then signature, then schema, then a queue. A changed limit
changes what honest peers may send, so each is part of the wire version.
"""

MAX_CONTROL_FRAME_BYTES = 256 * 1024
"""One unary call of the transport. Small enough that gossip never starves behind it on a 1 Mbit/s uplink (2 s)."""

MAX_CHUNK_BYTES = 4 * 1024 * 1024
"""One weight chunk: above it, losing a chunk wastes more than the per-chunk overhead saves."""

MIN_CHUNK_BYTES = 4 * 1024
"""One weight chunk of a small model: below it the request costs more than the bytes."""

MAX_FRAME_BYTES = MAX_CHUNK_BYTES + 64 * 1024
"""The largest frame of any kind: one chunk and its header."""

MAX_ENVELOPE_BYTES = MAX_CONTROL_FRAME_BYTES - 8 * 1024
"""One signed envelope; must fit a control frame together with the frame's own header."""

MAX_CHUNKS = 1 << 18
"""Chunks in one blob: a HAVE with a bit for each has 32 KiB, and a proof 18 digests. Of 4 MiB each they make 1 TiB."""

MAX_PROOF_BYTES = 18 * 32
"""Proof of one chunk: a digest for each level of the tree of the largest blob."""

MAX_WEIGHT_BYTES = MAX_CHUNKS * MAX_CHUNK_BYTES
"""Weights of one version: what the chunks of one blob can carry. 405B parameters in bf16 have three quarters of it."""

MAX_PATCHES = 8
"""Patches in one policy manifest: from 1, 4, 16 and 64 versions back, from version 0, a keyframe, and two spare."""

MAX_PATCH_SHARE = 2
"""All patches of one policy manifest together, in sizes of the weights: a seeder stores all of them."""

MAX_HEAD_EDGES = 2_048
"""Patches that one policy head lists: about 100 KiB, enough for a window of 1,500 versions."""

MAX_HEAD_LIFE_S = 3_600.0
"""Longest validity of a policy head. With a longer one, a peer cut off by an attacker would notice later."""

MAX_MESSAGES_PER_FRAME = 256
"""Messages coalesced into one frame; bounds the work one frame can demand."""

MAX_DIGESTS_PER_MESSAGE = 1_024
"""Offers, wants and receipts in one message: 32 KiB of digests."""

MAX_ENVELOPE_AGE_S = 7 * 24 * 3600.0
"""Replay window. Work older than a week exceeds any staleness bound, and the spool does not keep it longer."""

MAX_CLOCK_SKEW_S = 30.0
"""How far in the future a sender's clock may be. The directory itself refuses records a few seconds off."""

MAX_GROUP_SIZE = 64
"""Completions in one group. Group baselines gain nothing from more; it bounds the replay one envelope can demand."""

MAX_GROUP_BYTES = 12 * 1024 * 1024 + 64 * 1024
"""One group, encoded: 64 completions of 32,768 tokens at 6 bytes a token, the longest prompt, 30 KB for the rest."""

MAX_EVIDENCE_BYTES_PER_TOKEN = 16
"""Evidence of one group, for each of its tokens: an activation fingerprint. More would only fill disks."""

GROUP_PART_BYTES = 128 * 1024
"""One part of a group too large for an envelope: 1 s of a 1 Mbit/s uplink. Its proof, of 7 digests, costs .2 %."""

MAX_PROMPT_TOKENS = 8_192
"""Tokens in one prompt: bounds the prefill one envelope can demand."""

MAX_COMPLETION_TOKENS = 32_768
"""Tokens in one completion: bounds the replay one envelope can demand."""

MAX_VOCABULARY = 1 << 20
"""Largest token id plus one; the largest published vocabularies are near 2^18."""

MAX_TENSORS = 20_000
"""Tensors in a layout; a 61-layer mixture-of-experts model has about 17,000 when experts are stored one by one."""

MAX_TENSOR_RANK = 8
"""Dimensions of one tensor."""

MAX_LORA_RANK = 1_024
"""Rank of a run's adapters: above it they are as large as the layers beside them."""

MAX_LORA_TARGETS = 64
"""Kinds of layers that adapters stand beside; decoders have seven, mixtures of experts a few more."""

MAX_NAME_CHARS = 64
"""Names of runs, tasks and engines: shown in tables and file names."""

MAX_TEXT_CHARS = 2_000
"""Goal, license and content policy of a run manifest: shown to a person before joining."""

MAX_RUN_FILES = 16
"""Configuration and tokenizer files of a run."""

MAX_RUN_FILE_BYTES = 32 * 1024 * 1024
"""One such file; the largest published tokenizer.json files are near 20 MB."""

MAX_MODULE_BYTES = 1024 * 1024
"""An environment that a run brings, one WebAssembly module: word lists fit; its code has limits of its own."""

MAX_TASKS = 64
"""Tasks in a mix."""

MAX_DATA_ROWS = 1 << 32
"""Rows of one data set: a volunteer cannot count further slots either."""

MAX_DATA_BYTES = 4 * 1024**3
"""All data sets of a run together, packed: what a stranger may store on a volunteer's disk for them."""

MAX_SCORING_CHARS = 8_192
"""Description of a data set's scorers."""

MAX_SCORER_CODE_BYTES = 1024 * 1024
"""A researcher's own scorer, one Python file."""

MAX_TYPED_NAME_CHARS = 24
"""Name of a team: it fits a column of a table on a phone, and holds no sentence."""

MAX_ADDRESSES = 8
"""Dialable addresses one peer may announce; more would make a directory record an amplifier."""

MAX_INTRODUCED = 64
"""Neighbors that the learner may name to one peer: as many as the fastest uplink can use."""

MAX_ON_STANDBY = 1_024
"""Peers that one message puts on standby: 33 KiB. More than a thousand too many is a swarm that should train more."""

MAX_STANDBY_S = 900.0
"""Longest standby without a newer message: as long as a policy head is valid, so a peer cut off notices both."""

MAX_PRICE = 1e6
"""Most that an hour of a peer's work may cost, in any unit."""

MAX_ADDRESS_CHARS = 256
"""One multiaddr, relay circuits included."""

PEER_RECORD_TTL_S = 90.0
"""Lifetime of a directory record: it survives two missed refreshes (every 30 s), and dead peers expire in 90 s."""

MAX_RECEIPTS_PER_MESSAGE = 512
"""Receipts in one signed batch: about 64 KiB."""

MAX_VERDICT_CHECKS_PER_MESSAGE = 512
"""Checks of verdicts in one signed batch: about 40 KiB."""

MAX_VERDICT_PROBES = 64
"""Probes in one verdict: one for each completion of the largest group."""

MAX_LEDGER_HEAD_BYTES = 512
"""Envelope of a ledger head inside a countersignature: it has about 210 bytes."""

MAX_LEDGER_ENTRIES_PER_REPLY = 64
"""Ledger entries sent in one reply while a reader catches up."""

MAX_LEDGER_QUERIES_PER_S = 8
"""Ledger queries answered per peer. A 50-byte query requests a page of 256 KiB, so this allows 2 MiB/s."""

MAX_AMPLIFICATION = 8
"""Bytes of large answers to a stranger for each byte that it sent; with the small ones at most ten. Who wants to drain
an uplink pays a tenth of it."""

MAX_STALENESS = 1 << 20
"""Largest staleness bound a run may declare, in learner updates."""

MAX_UNCHECKED_GROUPS_PER_PEER = 256
"""Groups of one peer that may wait at the learner for verification. An honest volunteer has about 32 in flight, and
offers 64 again after an outage. Further groups get no storage receipt and are offered again later."""

MAX_UNCHECKED_BYTES_PER_PEER = 64 * 1024 * 1024
"""Bytes of one peer's large groups that may wait at the learner for verification: five of the largest size. As much as
256 groups that each fill an envelope."""

MAX_UNCHECKED_BYTES = 2 * 1024 * 1024 * 1024
"""Bytes of all groups that may wait, over all peers, since keys are free: the disk that a flood of valid signatures can
fill."""

MAX_DELEGATION_LIFE_S = 316_224_000.0
"""From the signing of a delegation to its end, 3,660 days: a forgotten one ends by itself."""

MAX_DELEGATES_PER_OWNER = 256
"""Machines of one owner in one run: a person's, or those of a laboratory's cluster. Caps count an owner once, and one
key is not to carry a whole network of strangers."""

MAX_DELEGATIONS_PER_DELEGATE = 8
"""Delegations of one machine in one run: renewals and changes of owner."""

MAX_REVOCATIONS_PER_PAIR = 8
"""Revocations of one machine by one owner in one run; each must void something that those before do not."""

MAX_DELEGATES = 65_536
"""Machines with a delegation in one run, over all owners, since keys are free: what a reader keeps in memory."""

MAX_MEMBERSHIPS_PER_MEMBER = 16
"""Memberships of one member in one run: changes of team, and of a team's name; the last is kept for leaving."""

MAX_MEMBERS = 65_536
"""Members of teams in one run, over all teams, since keys are free: what a reader keeps in memory."""

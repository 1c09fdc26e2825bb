"""Examples of each command for its `--help`; `docs/cli.md` shows the same ones."""

from __future__ import annotations

_EXAMPLES = {
    "p2prl": ("p2prl demo", "p2prl join 'p2prl://NAME@…?b=…'"),
    "p2prl join": (
        "p2prl join 'p2prl://NAME@…?b=…'",
        "p2prl join LINK --device cuda:1 --upload-mbit 5",
        "p2prl join LINK --device all",
        "p2prl join LINK --disk-gb 20 --ram-gb 8",
        "p2prl join LINK --share 0.5",
        "p2prl join LINK --events --json",
        "p2prl join --any --index https://runs.example.org --prefer small",
    ),
    "p2prl seed": (
        "p2prl seed LINK --upload-mbit 50 --monthly-gb 500",
        "p2prl seed LINK --public",
        "p2prl seed LINK --peers https://example.org/peers.txt",
    ),
    "p2prl validate": ("p2prl validate LINK --rate 0.1", "p2prl validate LINK --run-scorer"),
    "p2prl pause": ("p2prl pause", "p2prl pause --for 2h --keep-relaying"),
    "p2prl resume": ("p2prl resume", "p2prl resume --seat seat-1"),
    "p2prl finish": ("p2prl finish",),
    "p2prl stop": ("p2prl stop",),
    "p2prl limits": (
        "p2prl limits",
        "p2prl limits gpu.temp=75C gpu.power=200W idle=10m battery=never",
        "p2prl limits schedule='22:00-07:00, Sat-Sun' ram=default",
    ),
    "p2prl top": ("p2prl top",),
    "p2prl watch": ("p2prl watch", "p2prl watch my-run --follow"),
    "p2prl me": ("p2prl me", "p2prl me --json"),
    "p2prl doctor": (
        "p2prl doctor",
        "p2prl doctor 'p2prl://NAME@…?b=…'",
        "p2prl doctor --fix --bundle report.txt",
        "p2prl doctor --skip-device --p2pd ./p2pd",
    ),
    "p2prl update": ("p2prl update", "p2prl update --check"),
    "p2prl service print": (
        "p2prl service print LINK",
        "p2prl service print LINK --run seed --options '--upload-mbit 20' --manager launchd",
    ),
    "p2prl service install": ("p2prl service install LINK --user",),
    "p2prl config show": ("p2prl config show", "p2prl config show --no-origin"),
    "p2prl config init": ("p2prl config init",),
    "p2prl init": (
        "p2prl init my-run --preset chain4",
        "p2prl init my-run --preset arithmetic",
        "p2prl init my-run --model MODEL --data train.jsonl --eval held-out.jsonl --scorer number",
        "p2prl init my-run --model MODEL --data a=a.jsonl@2 --data b=b.jsonl --scorer a=number --scorer b=own.py:score",
        "p2prl init my-run --model Qwen/Qwen3-0.6B --task walk12 --max-new-tokens 64",
        "p2prl init my-run --model Qwen/Qwen3-4B --lora 16 --data train.jsonl --scorer number",
    ),
    "p2prl plan": (
        "p2prl plan --fleet fleet.toml",
        "p2prl plan --fleet fleet.toml --model 3b --staleness 128 --budget 2.0",
        "p2prl plan runs/my-run",
    ),
    "p2prl promote": ("p2prl promote runs/my-run",),
    "p2prl learn": (
        "p2prl learn runs/my-run",
        "p2prl learn runs/my-run --updates 0 --track tensorboard",
        "p2prl learn second/my-run --standby",
    ),
    "p2prl rollouts": (
        "p2prl rollouts runs/my-run",
        "p2prl rollouts runs/my-run --worst -n 20",
        "p2prl rollouts runs/my-run --step 100 --random --json",
    ),
    "p2prl board": (
        "p2prl board runs/my-run",
        "p2prl board LINK --port 0",
        "p2prl board runs/my-run --json",
        "p2prl board LINK --export site",
    ),
    "p2prl certificate": ("p2prl certificate LINK", "p2prl certificate runs/my-run ID --out certificate.pdf"),
    "p2prl index serve": (
        "p2prl index serve --listen 0.0.0.0:8100",
        "p2prl index serve --public --mirror https://runs.example.org",
        "p2prl index serve --public --count 12D3KooW…",
    ),
    "p2prl runs": ("p2prl runs --index https://runs.example.org", "p2prl runs --json"),
    "p2prl runs block": ("p2prl runs block LINK",),
    "p2prl runs allow": ("p2prl runs allow OWNER",),
    "p2prl runs trust": ("p2prl runs trust https://runs.example.org",),
    "p2prl status": ("p2prl status", "p2prl status runs/my-run"),
    "p2prl metrics": ("p2prl metrics", "p2prl metrics runs/my-run --once"),
    "p2prl eval": ("p2prl eval runs/my-run", "p2prl eval runs/my-run --split held-out --k 16 --prompts 512"),
    "p2prl export": ("p2prl export runs/my-run", "p2prl export runs/my-run --step 150 --push OWNER/NAME --private"),
    "p2prl demo": ("p2prl demo", "p2prl demo --volunteers 2 --cheats 1 --updates 60", "p2prl demo --listed"),
    "p2prl sim": (
        "p2prl sim --volunteers 4 --delay lognormal:5:60 --seed 3",
        "p2prl sim --partition 300:900 --loss 0.1",
        "p2prl sim --task guess --volunteers 4",
    ),
    "p2prl ledger verify": ("p2prl ledger verify runs/my-run", "p2prl ledger verify 'p2prl://NAME@…?b=…'"),
    "p2prl ledger dump": ("p2prl ledger dump runs/my-run my-run.ledger",),
    "p2prl receipts list": ("p2prl receipts list my-run", "p2prl receipts list LINK --limit 100"),
    "p2prl receipts explain": ("p2prl receipts explain my-run 3f9a2c41", "p2prl receipts explain LINK 3f9a2c41 --live"),
    "p2prl receipts evidence": ("p2prl receipts evidence refused.evidence",),
    "p2prl receipts replay": ("p2prl receipts replay my-run 3f9a2c41",),
    "p2prl key show": ("p2prl key show",),
    "p2prl key backup": ("p2prl key backup --seat seat-1",),
    "p2prl key restore": ("p2prl key restore --seat seat-1 < words.txt",),
    "p2prl key owner": ("p2prl key owner",),
    "p2prl key delegate": ("p2prl key delegate", "p2prl key delegate PEER_ID --name attic", "p2prl key delegate LINE"),
    "p2prl key revoke": ("p2prl key revoke attic", "p2prl key revoke PEER_ID --since 2026-11-20T08:30Z"),
    "p2prl team create": ("p2prl team create 'Red Pandas'",),
    "p2prl team rename": ("p2prl team rename 'Blue Pandas'",),
    "p2prl team join": ("p2prl team join LINE",),
    "p2prl team leave": ("p2prl team leave",),
    "p2prl team show": ("p2prl team show",),
}


def examples(command: str) -> tuple[str, ...]:
    """The examples of a command, by its full name."""
    return _EXAMPLES[command]


def epilog(command: str) -> str:
    """The examples of a command as the end of its help page."""
    return shown(examples(command))


def shown(lines: tuple[str, ...]) -> str:
    """Examples as the end of a help page, in separate paragraphs so that each gets its own line."""
    return "\n\n".join(f"[dim]Example:[/dim]  {line}" for line in lines)

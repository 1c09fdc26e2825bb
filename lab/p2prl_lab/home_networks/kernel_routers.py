"""Home routers of the lab, as rules for the kernel's own NAT (nftables). Pure.

The kernel translates, tracks connections and refuses strangers, with its default settings: as most home routers do,
which run Linux. It is the judge of every meeting: an emulator of our own let pairs meet whose packets a real router
drops, since it did not track sequence numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

OUTSIDE_DEVICE, INSIDE_DEVICE = "wan0", "lan0"

KEEPS_PORTS = "masquerade"
"""The outside port is the inside one while that is free."""

DRAWS_PORTS = "masquerade to :jhash th sport mod 20000 seed 0x7 offset 30000"
"""One drawn outside port for each inside one, for all remotes."""

DRAWS_PORTS_PER_REMOTE = "masquerade random,fully-random"
"""Another outside port for every remote: a symmetric NAT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelRouter:
    """One router between a home and the internet."""

    translation: str = ""
    """nftables' statement for IPv4 packets that leave; empty for a router that translates nothing."""
    inside: str
    """Its address on the home's side, with prefix length."""
    outside: str = ""
    """Its address towards the next router, with prefix length; the outermost one has the site's public address."""
    rejects: bool = False
    """Whether strangers' packets are answered with a reset, as OpenWrt does; otherwise they are dropped."""
    turns_back: str = ""
    """Its public address, if homes behind it reach each other there (hairpin, RFC 4787 section 6); otherwise empty."""
    lets_out: str = ""
    """nftables' condition for connections that the home may open; empty for all."""

    def rules(self) -> str:
        """The input of `nft -f -`. Its map `opened` takes the ports that the home asks for."""
        refusal = "\n    meta l4proto tcp reject with tcp reset" if self.rejects else ""
        answers = "ct state established,related accept"
        forward = (
            f'iifname "{OUTSIDE_DEVICE}" {answers}\n    ct status dnat accept\n'
            f'    iifname != "{OUTSIDE_DEVICE}" {self.lets_out} accept{refusal}'
        )
        if self.lets_out:
            forward = f"{answers}\n    {forward}"
        noted, turned, named = self._hairpin()
        translation = f'oifname "{OUTSIDE_DEVICE}" meta nfproto ipv4 meta l4proto {{ tcp, udp }} {self.translation}'
        return f"""table inet home {{
  map opened {{ type inet_proto . inet_service : ipv4_addr . inet_service; }}
  map homes {{ type inet_proto . inet_service : ipv4_addr . inet_service; flags dynamic,timeout; timeout 5m; }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname != "{OUTSIDE_DEVICE}" accept
    meta l4proto ipv6-icmp accept
    {answers}{refusal}
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    {noted}
    {forward}
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat;
    iifname "{OUTSIDE_DEVICE}" dnat ip to meta l4proto . th dport map @opened
    {turned}
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat;
    {translation if self.translation else ""}
    {named}
  }}
}}
"""

    def _hairpin(self) -> tuple[str, str, str]:
        """Rules of `forward`, `prerouting` and `postrouting`: note which home has which port, lead packets from inside
        for that port to it, and let them come from the outside address."""
        if not self.turns_back:
            return "", "", ""
        inside, ports = f'"{OUTSIDE_DEVICE}" meta nfproto ipv4', "meta l4proto . th"
        return (
            f"oifname {inside} meta l4proto {{ tcp, udp }} update @homes {{ {ports} sport : ip saddr . th sport }}",
            f"iifname != {inside} ip daddr {self.turns_back} dnat ip to {ports} dport map @homes",
            f"oifname != {inside} ct status dnat snat ip to {self.turns_back}",
        )


def opened_port(protocol: str, outside: int, inside: tuple[str, int]) -> str:
    """The input of `nft -f -` that lets everybody reach an inside endpoint at an outside port; `protocol` is `tcp` or
    `udp`."""
    return f"add element inet home opened {{ {protocol} . {outside} : {inside[0]} . {inside[1]} }}\n"

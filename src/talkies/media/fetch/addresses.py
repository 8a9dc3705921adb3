"""Which network addresses a client may make the server talk to: public ones, and what the operator listed.

A name is resolved once per hop, every address it has is checked, and the connection goes to the checked address
itself, so a name that answers differently a moment later gains nothing. Odd spellings (decimal, hex, octal,
IPv4 inside IPv6) need no list of tricks: the resolver turns them into the address that is then checked.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence

from talkies.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int, float], Sequence[str]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_V4_COMPATIBLE = ipaddress.ip_network("::/96")
# Not the public internet in IANA's registries, but global to the tables of some Pythons that this project runs on:
# protocol assignments, the withdrawn 6to4 relays, the second range for documentation.
_NOT_GLOBAL = tuple(ipaddress.ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20"))


class AllowList:
    """Hosts and networks that the operator vouches for: ``"media.internal"``, ``"10.0.0.0/8"``, ``"127.0.0.1"``."""

    def __init__(self, entries: Sequence[str] = ()) -> None:
        self.hosts: set[str] = set()
        self.networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            try:
                self.networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                if not entry or any(c in entry for c in "/:@*? "):
                    raise ConfigError(
                        f"allowed media host {entry!r} is neither a host name nor a network",
                        hint="write it like media.example.org or 10.1.0.0/16",
                        param="allow_host",
                    ) from None
                self.hosts.add(entry.lower().rstrip("."))

    def has_host(self, host: str) -> bool:
        return host.lower().rstrip(".") in self.hosts

    def has_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks if network.version == address.version)


def refusal(address: str, allow: AllowList) -> str | None:
    """Why ``address`` may not be contacted (``"a private address"``), or ``None`` if it may."""
    if "%" in address:
        return "a scoped address"
    parsed = unwrap(address)
    if allow.has_address(parsed):
        return None
    for name in ("loopback", "link_local", "multicast", "unspecified"):
        if getattr(parsed, f"is_{name}"):
            return f"a {name.replace('_', '-')} address" if name != "unspecified" else "an unspecified address"
    if parsed.is_private or (parsed.version == 6 and parsed.is_site_local):
        return "a private address"
    if (
        parsed.is_reserved
        or not parsed.is_global
        or any(parsed in n for n in _NOT_GLOBAL if n.version == parsed.version)
    ):
        return "an address outside the public internet"
    return None


def unwrap(text: str) -> Address:
    """The address, or the IPv4 address inside an IPv6 one where a router would take it out again."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and (address in _NAT64 or (address in _V4_COMPATIBLE and int(address) > 1)):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner if inner is not None else address


def resolve(host: str, port: int, timeout_s: float) -> list[str]:
    """All addresses of a host, in the system's order. Raises ``OSError``; a dead resolver is left after the time."""
    answer: list[str] = []
    failure: list[OSError] = []

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.extend(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, UnicodeError) as exc:
            failure.append(exc if isinstance(exc, OSError) else OSError(str(exc)))

    # getaddrinfo has no timeout of its own.
    thread = threading.Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError("the name could not be resolved in time")
    if failure:
        raise failure[0]
    return answer

"""Fair share: which tenant a job belongs to, and how many turns each tenant gets.

`fair="{tenant}"` lets the tenants of a queue take turns; `Fair("{tenant}", weights={"gold": 3})`
gives some of them more turns. `trellis.core.fairness` says how the order is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trellis.core.fairness import check_weight
from trellis.core.job import Relations
from trellis.core.keys import derive_key, parse_template
from trellis.declaration import checks
from trellis.errors import ConfigurationError, KeyUnresolved


@dataclass(frozen=True, slots=True)
class Fair:
    """The tenant of each job of a type, and the weights of tenants.

    >>> Fair("{account.id}", weights={"gold": 3}).relations("gold").weight
    3
    """

    #: Constants and fields of the payload in braces: `"{account.id}"`.
    template: str
    #: How many turns a tenant gets for each turn of a tenant that is not named: 1 to 1000.
    weights: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parse_template(checks.text("fair", self.template, "{tenant}"))
        if not isinstance(self.weights, Mapping):
            raise ConfigurationError(
                f"weights={self.weights!r} is not a mapping of tenants to whole numbers. Write it "
                "like weights={'gold': 3}."
            )
        for tenant, weight in self.weights.items():
            check_weight(checks.text("tenant", tenant, "gold"), weight)

    def tenant(self, payload: object) -> str:
        """Return the tenant of a (decoded) payload; raise `KeyUnresolved` if it has none."""
        tenant = derive_key(self.template, payload, "tenant")
        if not tenant:
            raise KeyUnresolved(f"The tenant from {self.template!r} is an empty text.")
        return tenant

    def relations(self, tenant: str) -> Relations:
        """Return what a job of this tenant belongs to."""
        return Relations(tenant=tenant, weight=self.weights.get(tenant))

    @property
    def until_known(self) -> Relations:
        """What a job belongs to before its payload, and so its tenant, is known."""
        return Relations(fair=self.template, weights=tuple(sorted(self.weights.items())) or None)


def check_fair(value: object) -> Fair | None:
    """Return the option `fair`; raise `ConfigurationError` if it is neither a template nor Fair."""
    if value is None or isinstance(value, Fair):
        return value
    if isinstance(value, str):
        return Fair(value)
    raise ConfigurationError(
        f"fair={value!r} is neither a template nor a Fair. Write fair='{{tenant}}', where tenant "
        "is a field of the payload, or fair=Fair('{tenant}', weights={'gold': 3})."
    )

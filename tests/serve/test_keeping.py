"""A legal hold or an open breach on an endpoint keeps its journal: nothing of it expires or is removed."""

from pathlib import Path

from falaj.core.errors import Conflict, Denied
from falaj.core.ref import Ref
from falaj.serve.rollout_state import DAY_S
from tests.infer import models
from tests.people import with_approval
from tests.privacy.erasures import approve
from tests.serve.ground import logged
from tests.town import LABEL, Town, refusal

SCORE = Ref.parse("endpoint:fraud/score")
BANK = "AE-CBUAE,AE-PDPL,sensitive,purpose=fraud"


def test_a_hold_on_a_model_keeps_the_journal_of_its_endpoint(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    mona, salem, dana = town.as_("mona"), town.as_("salem"), town.as_("dana")
    model = mona.catalog.publish("model:fraud/scorer", str(models.mlp(tmp_path / "mlp")), label=LABEL).ref
    mona.serve.add(SCORE, model)
    serve, house = town.house.desks["serve"], town.house
    (route,) = serve.routes(house.system()).values()
    now = house.system().now()
    serve.journal.append(route, [logged(now, "q1", "c1"), logged(now, "q2", "c2")])

    def expire() -> list[str]:
        """What is left of the journal after the loop looked at it in a hundred days."""
        ctx = house.context(town.actor("salem"))
        with house.ledger.read(ctx) as tx:
            record = tx.need(SCORE)
        serve.tidy(ctx, record, now + 100 * DAY_S)
        return sorted(row.id for row in serve.journal.read("bank", SCORE))

    salem.catalog.hold(model, "case 9")
    assert expire() == ["q1", "q2"]
    for act in (lambda: salem.serve.remove(SCORE), lambda: salem.serve.forget(SCORE, ("c1",))):
        refused = refusal(act)
        assert isinstance(refused, Denied)
        assert "under legal hold" in refused.message
    asked = salem.privacy.ask("erasure", "c1").ref
    salem.privacy.erase(asked, "c1", plan=True)
    approve(town, asked)
    refused = refusal(lambda: salem.privacy.erase(asked, "c1"))
    assert isinstance(refused, Conflict), "nothing is destroyed while the journal has to stay"
    assert "the journal is kept" in refused.message
    assert salem.privacy.request(asked).steps.keys() == {"restrict"}

    salem.catalog.release(model, "case 9")
    breach = dana.privacy.report("a laptop was lost", about=(str(SCORE),), regimes=("AE-PDPL",)).ref
    assert expire() == ["q1", "q2"]
    assert str(breach) in refusal(lambda: salem.serve.remove(SCORE)).message
    dana.privacy.notify(breach, "AE-PDPL", reference="2026/118")
    dana.privacy.notify(breach, "AE-PDPL", to="people", reference="2026/119")
    dana.privacy.settle(breach, "a new lock")

    assert "another person" in refusal(lambda: salem.serve.forget(SCORE, ("c2",), request=asked)).message
    assert "was not started" in refusal(lambda: salem.serve.forget(SCORE, ("c1",), request=asked)).message
    assert with_approval(lambda: salem.serve.forget(SCORE, ("c2",)), salem, town.as_("badr")) == 1
    assert salem.privacy.erase(asked, "c1").ok
    assert expire() == []
    assert salem.serve.remove(SCORE).ref == SCORE
    town.close()


def test_no_statutory_period_keeps_a_sample_of_requests(tmp_path: Path) -> None:
    town = Town(tmp_path / "house")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    mona, house = town.as_("mona"), town.house
    model = mona.catalog.publish("model:fraud/scorer", str(models.mlp(tmp_path / "mlp")), label=BANK).ref
    mona.serve.add(SCORE, model)
    serve, ctx = house.desks["serve"], house.context(town.actor("salem"))
    (route,) = serve.routes(house.system()).values()
    serve.journal.append(route, [logged(ctx.now(), "q1", "c1")])
    with house.ledger.read(ctx) as tx:
        serve.tidy(ctx, tx.need(SCORE), ctx.now() + 100 * DAY_S)
    assert list(serve.journal.read("bank", SCORE)) == []
    assert town.as_("salem").catalog.kept((model,)), "the model itself stays"
    town.close()

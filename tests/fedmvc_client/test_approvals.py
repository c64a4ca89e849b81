import json
from datetime import UTC, datetime, timedelta

import pytest

from configs.errors import ConfigError, PolicyRefused, ProtocolError
from configs.plan import RunPlan
from configs.site import Policy
from fedmvc_client.approvals import Register
from privacy.audit import AuditLog

REQUIRED, AUTO = Policy(approval="required"), Policy(approval="auto")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SITES = ["east", "north", "south", "west"]
RUN, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32


def plan(n_clusters=3, **privacy):
    return RunPlan.parse({"method": "fedhk-mvfc", "n_clusters": n_clusters, "privacy": privacy})


def masked(sites, **privacy):
    return plan(secure_aggregation=True, participants=sites, **privacy)


def noisy(sites):
    return RunPlan.parse(
        {
            "method": "fedhk-mvfc",
            "n_clusters": 3,
            "fedhk": {"heat_kernel": "one"},
            "privacy": {
                "mechanism": "gaussian",
                "epsilon": 1.0,
                "secure_aggregation": True,
                "participants": sites,
            },
        }
    )


PLAN = plan()
SHORT = PLAN.plan_id[:12]


@pytest.fixture(params=["folder", "memory"])
def register(request, tmp_path):
    folder = tmp_path / "west" if request.param == "folder" else None
    return Register(folder, "west", AuditLog(None))


def refused(call, *arguments, error=PolicyRefused):
    with pytest.raises(error) as caught:
        call(*arguments)
    return caught.value.public_message


def events(register):
    return [entry.event for entry in register._audit.entries()]


# -- plans -----------------------------------------------------------------------------------


def test_a_plan_is_seen_once_and_kept(register):
    assert register.see(PLAN, NOW)
    assert not register.see(PLAN, NOW + timedelta(days=1))
    (entry,) = register.list()
    assert (entry.plan_id, entry.method, entry.status) == (PLAN.plan_id, "fedhk-mvfc", "seen")
    assert (entry.seen, entry.approved_runs) == ("2026-03-01T12:00:00+00:00", 0)
    assert register.load(PLAN.plan_id) == PLAN
    assert events(register) == ["plan seen"]


def test_the_folder_holds_the_plans_canonical_form(tmp_path):
    Register(tmp_path, "west").see(PLAN)
    copy = tmp_path / "plans" / f"{PLAN.plan_id}.json"
    assert copy.read_text() == PLAN.canonical()
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]
    # whoever removed a copy gets it back with the next request
    copy.unlink()
    Register(tmp_path, "west").see(PLAN)
    assert copy.read_text() == PLAN.canonical()


def test_a_plan_is_found_by_how_its_id_begins(register):
    register.see(PLAN)
    for text in (PLAN.plan_id, SHORT, PLAN.plan_id[:1].upper()):
        assert register.find(text) == PLAN.plan_id
    for text in ("", "zz", PLAN.plan_id + "0", "%"):
        assert "has seen no plan whose id begins with" in refused(
            register.find, text, error=ConfigError
        )
    others = [plan(n) for n in range(4, 21)]  # two of these 17 begin with one digit
    for other in others:
        register.see(other)
    double = next(
        digit
        for digit in "0123456789abcdef"
        if sum(other.plan_id.startswith(digit) for other in others) > 1
    )
    assert "plans whose id begins with" in refused(register.find, double, error=ConfigError)


def test_a_changed_copy_is_no_plan(tmp_path):
    register = Register(tmp_path, "west")
    register.see(PLAN)
    copy = tmp_path / "plans" / f"{PLAN.plan_id}.json"
    copy.write_text(plan(9).canonical())
    assert "was changed: name the plan's file" in refused(
        register.load, PLAN.plan_id, error=ConfigError
    )
    for body in ("{", "[" * 100_000, json.dumps({"method": "none"})):
        copy.write_text(body)
        assert "copy of plan" in refused(register.load, PLAN.plan_id, error=ConfigError)
    copy.unlink()
    sentence = refused(register.load, PLAN.plan_id, error=ConfigError)
    assert "cannot be read: name the plan's file" in sentence
    assert str(tmp_path) not in sentence


# -- decisions -------------------------------------------------------------------------------


def test_an_approval_allows_one_run_of_thirty_days(register):
    register.see(PLAN, NOW)
    entry = register.approve(PLAN.plan_id, now=NOW)
    assert (entry.status, entry.approved_runs, entry.runs_left) == ("approved", 1, 1)
    assert entry.expires == "2026-03-31T12:00:00+00:00"

    register.begin(RUN, PLAN, REQUIRED, NOW)

    (entry,) = register.list(NOW)
    assert (entry.status, entry.approved_runs, entry.runs_left) == ("used up", 1, 0)
    assert refused(register.begin, OTHER, PLAN, REQUIRED, NOW) == (
        "site 'west' wants every plan approved (policy.approval = 'required') and of 1 approved "
        f"run of plan {SHORT} none is left: run fedmvc-client plans approve {SHORT} at the site, "
        "or set policy.approval = 'auto' in its site.toml"
    )
    assert events(register) == ["plan seen", "plan approved", "run begun"]


def test_without_an_approval_nothing_runs(register):
    sentence = refused(register.begin, RUN, PLAN, REQUIRED, NOW)
    assert f"no approval of plan {SHORT} is there" in sentence
    register.see(PLAN)
    assert refused(register.begin, RUN, PLAN, REQUIRED, NOW) == sentence


def test_an_approval_ends(register):
    register.see(PLAN)
    register.approve(PLAN.plan_id, days=2, now=NOW)
    register.would_begin(PLAN, REQUIRED, None, NOW + timedelta(days=2, seconds=-1))
    sentence = refused(register.begin, RUN, PLAN, REQUIRED, NOW + timedelta(days=2))
    assert f"the approval of plan {SHORT} ended on 2026-03-03" in sentence
    (entry,) = register.list(NOW + timedelta(days=2))
    assert (entry.status, entry.approved_runs, entry.runs_left) == ("expired", 1, 0)


def test_an_edited_plan_needs_its_own_approval(register):
    register.see(PLAN)
    register.approve(PLAN.plan_id, runs=5, now=NOW)
    assert "no approval of plan" in refused(register.begin, RUN, plan(4), REQUIRED, NOW)


def test_the_last_word_counts(register):
    register.see(PLAN)
    register.approve(PLAN.plan_id, runs=3, now=NOW)
    register.begin(RUN, PLAN, REQUIRED, NOW)
    assert register.approve(PLAN.plan_id, now=NOW).runs_left == 1  # not three
    assert register.reject(PLAN.plan_id, NOW).status == "rejected"
    for policy in (REQUIRED, AUTO):
        assert refused(register.begin, OTHER, PLAN, policy, NOW).startswith(
            f"site 'west' has rejected plan {SHORT}: change the plan"
        )
    assert "has rejected" in refused(register.begin, RUN, PLAN, REQUIRED, NOW)  # nor goes it on
    register.approve(PLAN.plan_id, now=NOW)
    register.begin(OTHER, PLAN, REQUIRED, NOW)


def test_only_a_plan_seen_can_be_decided_on(register):
    for call in (register.approve, register.reject):
        assert "has seen no plan" in refused(call, PLAN.plan_id, error=ConfigError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runs": 0}, "runs is 0: give a whole number, 1 or more"),
        ({"days": 0}, "days is 0: give a whole number, 1 or more"),
        ({"days": 10**9}, "days is 1000000000"),
    ],
)
def test_numbers_that_allow_nothing_are_refused(register, options, words):
    register.see(PLAN)
    with pytest.raises(ConfigError) as caught:
        register.approve(PLAN.plan_id, **options)
    assert words in caught.value.public_message
    assert register.list()[0].status == "seen"


# -- runs ------------------------------------------------------------------------------------


def test_going_on_with_a_run_is_free(register):
    register.see(PLAN)
    register.approve(PLAN.plan_id, now=NOW)
    for later in (0, 40):
        register.begin(RUN, PLAN, REQUIRED, NOW + timedelta(days=later))
        register.would_begin(PLAN, REQUIRED, RUN, NOW + timedelta(days=later))


def test_a_run_id_is_good_for_one_run_of_one_plan(register):
    register.begin(RUN, PLAN, AUTO, NOW)
    sentence = refused(register.begin, RUN, plan(4), AUTO, NOW, error=ProtocolError)
    assert f"run aaaaaaaa belongs to plan {SHORT}, not {plan(4).plan_id[:12]}" in sentence
    register.finished(RUN)
    register.finished(RUN)
    for call, arguments in (
        (register.begin, (RUN, PLAN, AUTO, NOW)),
        (register.would_begin, (PLAN, AUTO, RUN, NOW)),
    ):
        assert "run aaaaaaaa is over here" in refused(call, *arguments, error=ProtocolError)
    assert events(register).count("run finished") == 1


def test_asking_beforehand_uses_nothing_up(register):
    register.see(PLAN)
    register.approve(PLAN.plan_id, now=NOW)
    for _ in range(3):
        register.would_begin(PLAN, REQUIRED, None, NOW)
        register.would_begin(PLAN, REQUIRED, RUN, NOW)
    assert register.list(NOW)[0].runs_left == 1
    before = events(register)
    refused(register.would_begin, plan(4), REQUIRED, None, NOW)
    assert events(register) == before


def test_auto_lets_so_many_runs_of_a_month_through(register):
    policy = Policy(approval="auto", auto_runs_a_month=2)
    register.begin(RUN, PLAN, policy, NOW)
    register.begin(OTHER, plan(4), policy, NOW + timedelta(days=1))
    sentence = refused(register.begin, THIRD, PLAN, policy, NOW + timedelta(days=2))
    assert "began 2 runs without an approval of their own in 30 days" in sentence
    assert "policy.auto_runs_a_month is 2" in sentence
    register.begin(RUN, PLAN, policy, NOW + timedelta(days=2))  # its own goes on
    register.begin(THIRD, PLAN, policy, NOW + timedelta(days=30, seconds=1))


def test_an_approval_counts_before_the_months_runs(register):
    policy = Policy(approval="auto", auto_runs_a_month=0)
    assert "auto_runs_a_month is 0" in refused(register.begin, RUN, PLAN, policy, NOW)
    register.see(PLAN)
    register.approve(PLAN.plan_id, now=NOW)
    register.begin(RUN, PLAN, policy, NOW)
    assert register.list(NOW)[0].runs_left == 0


# -- two sums that differ by one site --------------------------------------------------------


def test_sums_without_noise_of_other_participants_are_refused(register):
    register.begin(RUN, masked(SITES), AUTO, NOW)
    register.begin(OTHER, masked(SITES), AUTO, NOW)  # the same list again
    second = masked(SITES[1:])

    sentence = refused(register.begin, THIRD, second, AUTO, NOW)

    assert sentence == (
        "site 'west' took part in run aaaaaaaa with other participants and without noise, and two "
        "such sums of the same patients together can show a single site's: use the same "
        "participants or noise, or let the site run fedmvc-client plans approve "
        f"{second.plan_id[:12]}"
    )
    assert register.differing_sums(second)
    assert register.differing_sums(masked(SITES)) is None
    register.see(second)
    register.approve(second.plan_id, now=NOW)
    register.begin(THIRD, second, AUTO, NOW)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (masked(SITES), noisy(SITES[1:])),
        (noisy(SITES), masked(SITES[1:])),
        (plan(), masked(SITES[1:])),
        (masked(SITES), plan()),
    ],
)
def test_noisy_and_plain_runs_may_have_other_participants(register, first, second):
    register.begin(RUN, first, AUTO, NOW)
    register.begin(OTHER, second, AUTO, NOW)


def test_another_name_of_the_cohort_does_not_help_but_other_patients_do(tmp_path):
    register = Register(tmp_path, "west")
    register.begin(RUN, masked(SITES), Policy(approval="auto", cohort="heart"), NOW)
    second, renamed = masked(SITES[1:]), Policy(approval="auto", cohort="children")
    assert "with other participants" in refused(register.begin, OTHER, second, renamed, NOW)
    apart = Register(tmp_path, "west", separate=["heart"])
    apart.begin(OTHER, second, renamed, NOW)


# -- on disk ---------------------------------------------------------------------------------


def test_it_survives_a_restart_and_two_see_one_register(tmp_path):
    first, second = (Register(tmp_path, "west", AuditLog(tmp_path / "a.jsonl")) for _ in range(2))
    first.see(PLAN)
    second.approve(PLAN.plan_id, now=NOW)
    first.begin(RUN, PLAN, REQUIRED, NOW)
    assert "none is left" in refused(second.begin, OTHER, PLAN, REQUIRED, NOW)
    second.begin(RUN, PLAN, REQUIRED, NOW)
    assert first.list(NOW) == second.list(NOW) == Register(tmp_path, "west").list(NOW)
    AuditLog(tmp_path / "a.jsonl").verify()


# -- against the audit log -------------------------------------------------------------------


def step_approved(register):
    register.approve(PLAN.plan_id, runs=2, now=NOW)


def step_begun(register):
    register.begin(RUN, PLAN, REQUIRED, NOW)


def step_over(register):
    register.finished(RUN)


def step_rejected(register):
    register.reject(PLAN.plan_id, NOW)


STEPS = [step_approved, step_begun, step_over, step_rejected]


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_register_that_knows_less_than_the_log_is_refused(tmp_path, step, removed):
    audit, state = AuditLog(tmp_path / "audit.jsonl"), tmp_path / "west" / "state"
    register = Register(tmp_path / "west", "west", audit)
    register.see(PLAN)
    for earlier in STEPS[: STEPS.index(step)]:
        earlier(register)
    del register  # SQLite folds its journal into the file
    before = (state / "register.db").read_bytes()
    register = Register(tmp_path / "west", "west", audit)
    step(register)
    register.verify(audit.entries())
    del register
    (state / "register.db").unlink()
    if not removed:
        (state / "register.db").write_bytes(before)
    sentence = refused(Register(tmp_path / "west", "west", audit).verify, audit.entries())
    assert sentence.startswith("register of site 'west' was altered (the audit log notes ")
    assert "restore the state folder" in sentence


def test_an_approval_made_larger_is_refused(tmp_path):
    audit = AuditLog(None)
    register = Register(tmp_path, "west", audit)
    register.see(PLAN)
    register.approve(PLAN.plan_id, now=NOW)
    with register._database.transaction() as connection:
        connection.execute("UPDATE decisions SET runs = 99")
    assert f"a decision on plan {SHORT}" in refused(register.verify, audit.entries())


def test_a_run_that_could_not_be_noted_goes_on_and_is_noted_then(tmp_path, monkeypatch):
    """The register is written first: a process that dies in between locks no site out."""
    audit = AuditLog(None)
    register = Register(tmp_path, "west", audit)

    def full(*_, **__):
        raise ConfigError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(audit, "write", full)
        refused(register.begin, RUN, PLAN, AUTO, NOW, error=ConfigError)
    register.verify(audit.entries())
    for _ in range(2):
        register.begin(RUN, PLAN, AUTO, NOW)
    assert [entry.facts["run_id"] for entry in audit.entries()] == [RUN]
    register.verify(audit.entries())


def test_a_rejected_plan_is_refused_at_every_step(register):
    register.see(PLAN)
    register.refuse_rejected(PLAN.plan_id)
    register.approve(PLAN.plan_id, days=1, now=NOW)
    register.refuse_rejected(PLAN.plan_id)  # a run under way outlives its approval
    register.reject(PLAN.plan_id, NOW)
    assert "has rejected plan" in refused(register.refuse_rejected, PLAN.plan_id)
    register.approve(PLAN.plan_id, now=NOW)
    register.refuse_rejected(PLAN.plan_id)

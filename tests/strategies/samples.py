"""One message of every kind, small, with every field filled."""

import numpy as np

from strategies import messages as m

RUN, PLAN = "12345678-aaaa-bbbb-cccc-1234567890ab", "0" * 64


def scaling(d=2):
    return m.ViewScaling(np.zeros(d), np.ones(d), np.zeros(d), np.full(d, np.inf))


def moments(d=2):
    return m.Moments(np.full(d, 3.0), np.ones(d), np.ones(d), np.zeros(d), np.full(d, 2.0))


def model():
    return m.ClusterModel(
        centers=(np.arange(6.0).reshape(3, 2),),
        view_weights=np.ones(1),
        scaling=(scaling(),),
        bandwidth=np.ones(1),
        holding_share=np.ones(1),
        heat_kernel="one",
        scaling_kind="standard",
        fuzzifier=2.0,
        view_exponent=5.0,
        views=("ecg",),
        columns=(("rr", "qt"),),
        bounds=(np.array([[0.0, 1.0], [0.0, 1.0]]),),
        schema_hashes=("ab",),
        plan_id=PLAN,
    )


def feature_scaling(d=2):
    return m.FeatureScaling(np.zeros(d), np.ones(d), np.zeros(d, dtype=bool))


def selection():
    """Two views, of two features and of one; the second feature is the best."""
    return m.FeatureSelection(
        views=("ecg", "blood"),
        columns=(("rr", "qt"), ("crp",)),
        ranking=np.array([1, 2, 0]),
        scores=np.array([0.0, 2.0, 1.0]),
        observed_share=np.array([1.0, 0.5, 1.0]),
        weights=np.arange(6.0).reshape(3, 2),
        scaling=(feature_scaling(2), feature_scaling(1)),
        frequencies=np.array([0.0, 0.0, 4.0]),
        documents=np.array([0.0, 9.0]),
        ratio=0.4,
        rank="gated_pivot",
        text=False,
        plan_id=PLAN,
    )


def every_message():
    centers = (np.arange(12.0).reshape(2, 3, 2),)
    ones = np.ones((2, 1))
    byte = np.array([192], dtype=np.uint8)
    sums = m.SufficientStatistics(centers, (np.ones((2, 3)),), ones)
    view = m.ViewDescription(
        "ecg", ("rr", "qt"), ("ms", ""), np.zeros((2, 2)), np.array([True, False]), "ab", True
    )
    return [
        m.Refusal(4, "no"),
        m.BundleRefused("0f" * 32, 4, "the app bundle carries code"),
        m.HelloRequest(RUN, PLAN, "{}"),
        m.HelloReply(RUN, "st-anna", "0.1.0", (view,)),
        m.PrepareRequest(RUN, PLAN, ("ecg",), np.array([2])),
        m.PrepareReply(RUN, 3, np.array([3]), np.array([0]), (moments(),)),
        m.SeedRequest(
            RUN, PLAN, (scaling(),), np.ones(1), (True,), np.ones(1), (np.zeros(2),), 3, 2, 0
        ),
        m.SeedReply(RUN, centers, np.ones((2, 3)), (np.ones((3, 2)),)),
        m.RoundRequest(
            RUN, PLAN, 1, np.arange(2), centers, ones, ones, -1, np.zeros((2, 0), dtype=np.int64)
        ),
        m.StatisticsReply(RUN, 1, sums),
        m.CodedStatistics(
            RUN, 1, -1, (np.ones((2, 3), dtype=np.int8),), np.ones((2, 1), dtype=np.float32)
        ),
        m.LocalModelReply(RUN, 1, 3, centers, ones, np.ones(2), np.ones(2), np.ones(2)),
        m.FinishRequest(RUN, PLAN, model()),
        m.FinishReply(RUN, 3, np.ones(1), np.full(3, 1 / 3), 0.5),
        m.LinkRequest(RUN, PLAN),
        m.LinkReply(RUN, "trim", np.arange(32, dtype=np.uint8).reshape(2, 16)),
        m.AlignRequest(RUN, PLAN, 0, 2, np.array([192], dtype=np.uint8)),
        m.StartReply(RUN, byte, byte, 1.5, byte[:0]),
        m.SweepRequest(
            RUN, PLAN, 1, 1.0, 0.5, np.ones((2, 3), dtype=np.int8), 0.1, np.array([2, 0, 1])
        ),
        m.SweepReply(RUN, 1, byte, 1.5),
        m.OutcomeRequest(RUN, PLAN, byte, byte, byte),
        m.OutcomeReply(RUN, 2),
        *every_message_of_features(),
        *every_message_of_protected_runs(),
    ]


def every_message_of_protected_runs():
    octets = np.arange(5, dtype=np.uint8)
    ring = np.array([0, 2**63, 2**64 - 1], dtype=np.uint64)
    names = ("st-anna", "st-benno", "st-clara")
    return [
        m.KeysRequest(RUN, PLAN, 1),
        m.KeysReply(RUN, octets),
        m.SharesRequest(RUN, PLAN, 1, (octets, octets[:0])),
        m.SharesReply(RUN, names[1:], (octets, octets)),
        m.AskRequest(RUN, PLAN, (octets, octets)),
        m.SumRequest(RUN, PLAN, 2, names, (octets, octets), names[:1], (octets,)),
        m.SumReply(RUN, 2, ring),
        m.UnmaskRequest(RUN, PLAN, 2, names[:2]),
        m.UnmaskReply(RUN, 2, octets),
        m.CloseRequest(RUN, PLAN, 2, names, octets),
        m.CloseReply(RUN),
    ]


def every_message_of_features():
    d, v = np.ones(3), np.ones(2)
    weights, scalings = np.arange(6.0).reshape(3, 2), (feature_scaling(2), feature_scaling(1))
    return [
        m.SurveyRequest(RUN, PLAN, ("ecg", "blood"), np.array([2, 1])),
        m.SurveyReply(RUN, (np.ones(1), v, d, d, d, v)),
        m.ScalingRequest(RUN, PLAN, d, d, v),
        m.ScalingReply(RUN, (d, d)),
        m.FitRequest(RUN, PLAN, 1, weights, scalings, 0.5),
        m.FitReply(RUN, 1, 0.75),
        m.ShareRequest(RUN, PLAN, 1, 0.25),
        m.ShareTableRequest(RUN, PLAN, 1, ("a", "b"), np.array([0.25, 0.75])),
        m.ShareReply(RUN, 1, (weights, d, v, v, np.array([1.5]))),
        m.RefineRequest(RUN, PLAN, weights, np.array([1, 2, 0]), 1),
        m.RefineReply(RUN, (np.array([0.0, 1.0, 0.0]),)),
        m.SelectionRequest(RUN, PLAN, selection()),
        m.SelectionReply(RUN),
    ]


def assert_same(a, b):
    """Equal field by field, arrays bit for bit and with the same type."""
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    elif isinstance(a, tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            assert_same(getattr(a, name), getattr(b, name))
    else:
        assert a == b

"""scikit-learn style estimators for one machine, which plays site and server at once."""

from fedmvc_client.estimators.hk_mvfc import HKMVFC
from fedmvc_client.estimators.mufsht import MUFSHT
from fedmvc_client.estimators.tensor_fmvc import TensorFMVC

__all__ = ["HKMVFC", "MUFSHT", "TensorFMVC"]

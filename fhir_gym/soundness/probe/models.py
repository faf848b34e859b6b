"""The learners: scikit-learn's gradient boosting, single-threaded and deterministic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fhir_gym.errors import MissingExtraError

SEED = 13
_SETTINGS = {
    "max_iter": 80,
    "learning_rate": 0.08,
    "max_leaf_nodes": 6,
    "l2_regularization": 3.0,
    "max_bins": 64,
    "early_stopping": False,
}
"""Settings for small trees. With a few hundred scenes, larger trees overfit and miss weak leaks."""


def require_sklearn() -> None:
    """Check that scikit-learn is installed.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    _learner()


def predict_probabilities(
    train: NDArray[np.float64], labels: NDArray[np.int8], test: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predict the probability of label 1 for each test row. The result is all zeros if training is impossible.

    Args:
        train: Training rows.
        labels: Training labels, 0 or 1.
        test: Test rows.
    """
    known = ~np.isnan(train).all(axis=0)  # scikit-learn cannot bin an empty column
    if not known.any() or labels.min() == labels.max():
        return np.zeros(len(test))
    return np.asarray(_fitted(train[:, known], labels, max_features=0.5).predict_proba(test[:, known])[:, 1])


def predict_classes(train: NDArray[np.float64], classes: list[str], test: NDArray[np.float64]) -> tuple[list[str], Any]:
    """Predict the probability of each class for each test row.

    Args:
        train: Training rows.
        classes: Training classes.
        test: Test rows.
    """
    known = sorted(set(classes))
    if not train.shape[1] or len(known) == 1:
        shares = [classes.count(one) / len(classes) for one in known]
        return known, np.tile(shares, (len(test), 1))
    model = _fitted(train, np.array([known.index(one) for one in classes]))
    return known, model.predict_proba(test)


def _fitted(train: NDArray[np.float64], labels: NDArray[Any], **settings: Any) -> Any:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return _learner()(**_SETTINGS, **settings, random_state=SEED).fit(train, labels)


def _learner() -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier
    except ImportError:
        raise MissingExtraError("the probe needs scikit-learn: pip install scikit-learn") from None
    return HistGradientBoostingClassifier

"""How far two attention outputs are apart."""


def relative_error(got, want):
    """||got - want|| / ||want||; ``got`` must be finite."""
    assert got.isfinite().all()
    return ((got.float() - want.float()).norm() / want.float().norm()).item()

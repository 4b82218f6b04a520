"""The gallery's order: from the first audit to what follows from it, not by file name."""

ORDER = (
    "plot_credit_pipeline.py",
    "plot_native_categories.py",
    "plot_compare_models.py",
    "plot_outage_log.py",
    "plot_feature_server.py",
    "plot_side_by_side.py",
    "plot_verify_an_audit.py",
)


class InReadingOrder:
    """A sort key for sphinx-gallery."""

    def __init__(self, src_dir: str) -> None:
        self.src_dir = src_dir

    def __call__(self, filename: str) -> int:
        return ORDER.index(filename)

    def __repr__(self) -> str:
        return "<InReadingOrder>"

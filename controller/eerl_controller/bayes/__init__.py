"""Policy ``eerl``: one Bayesian model of time and power, and one decision rule (see ``decision``)."""

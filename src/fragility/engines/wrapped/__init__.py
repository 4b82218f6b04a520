"""Wrappers around models that engines read: calibrated, voting, bagging, one-against-rest and stacked classifiers.

    combining  which members a wrapper asks for what, and its own arithmetic on their answers
    members    the answers of a member at the states of rows: by its trees, by its sums, or by the member itself
    engine     traces and answers of the whole

Members are given the same cells as the wrapper. A member with preprocessing of its own is asked itself; where no member
can be read otherwise, the engine refuses the model.
"""

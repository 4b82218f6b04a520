"""Compiled kernels of the tree engine: flat arrays in, arrays out.

Formulations of the same question, "which leaf does each state of each row reach?":

Bit planes (``planes``, for trees of up to 256 leaves and for oblivious trees). 512 rows are one vector of 8 words. For
each distinct test one bit per row says whether the row goes right (``decisions``). A tree is a network of ANDs over
those bits (``preparing``): the rows that reach a node, split into those that go left and right. The numbers of the
leaves are read back as bit planes, transposed to one byte per row, and look up the leaf values. A state differs from x
only in the bits of the tests whose group it moves, so it costs one pass through the networks of the trees that ask
about such a group.

State sets (``walks``, for deep trees). One walk per row and tree carries a 64-bit set of states; it splits only at
nodes where x and the baseline part.

Values (``values``, for deep trees). One walk per row and tree answers every value that each unit may take: values leave
the way of x where they part from it.

Look-ups (``terms``, for explainable boosting machines, whose trees are tables). A state picks a stretch of each column,
and each table gives one entry.

The first two again for rows that have states of their own, for labels, orders and searches: the lanes of a vector, and
the bits of a set, are then states of one row or a few.

What a block's raw sums say (``observing``): link, margin, class, order of removal, first flip. The sums of all states
are held for one block of rows at a time.

Entry points are called in several threads, each on its own rows; a row's sums run in tree order, so no bit depends on
the number of threads. Named tuples of arrays (Forest, Plan, ...) are taken apart before a loop begins: inside it, each
access counts references to every array of the tuple, in all threads at once, and costs more than the loop's own work.
"""

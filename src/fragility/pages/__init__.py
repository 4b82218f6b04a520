"""How results are presented: words, pictures, pages, and files by suffix.

terms     the glossary, and the states that certificates store as words
wording   every sentence about a certificate, a probability, a review rule or a condition
drawing   pictures: SVG, the margin curve, and the base of all matplotlib figures
sections  the blocks of a page; terminal text, Markdown and HTML
results   the base of all results, and the files they are saved as
"""

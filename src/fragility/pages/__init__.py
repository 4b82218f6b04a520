"""How results are written for people: words, figures, and files by suffix.

terms     the words with one meaning, and the states that certificates hold as words
wording   every sentence about a certificate, a probability, a review rule or a condition
drawing   pictures: SVG, the margin curve, and what matplotlib figures share
sections  what a page is made of; terminal text, Markdown and HTML
results   what every result can do, and the files it is saved as
"""

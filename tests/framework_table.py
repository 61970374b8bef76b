"""Write docs/frameworks.md: what each framework has, as the parity tests find it.

    python tests/framework_table.py

test_parity.py compares the page with what it finds.
"""

from __future__ import annotations

import pathlib

import frameworks
import parity

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "frameworks.md"
_MARKS = {"value": "v", "gradient": "g", "second derivative": "h", "compiled": "c"}

_ABOUT = """# One semantics in four frameworks

What goes in comes out: `softorder.sort(x, 0.1)` is a torch tensor for a torch tensor, a JAX array
for a JAX array, a TensorFlow tensor for a TensorFlow tensor, a NumPy array for a NumPy array, with
the same numbers. The last table is made by the tests (`make frameworks`), which compare each entry
with NumPy in float64: **v** the value, **g** its gradient, **h** its second derivatives, **c** the
value when it is compiled. What is missing is an error that says so.

| framework | derivatives | native kernel | compiled by |
| --- | --- | --- | --- |
| torch | autograd, `torch.func`, forward mode | on the CPU | `torch.compile`, `torch.export` |
| JAX | `grad`, `jvp`, `vmap`, `hessian`, any order | on the CPU, through XLA | `jit` |
| TensorFlow | `GradientTape`, nested | no: the same scan in operations | `tf.function` |
| NumPy | `softorder.vjp` | yes | |

- **Half precision** is computed in float32. Results have the dtype of the scores, except for `rank`
  and `argsort`, which are float32: bfloat16 cannot count past 256, and float16 not past 2,048.
- **A soft permutation is a snapshot**: `P = SoftSort(tau)(x)` copies scores, mask and a tau that is
  an array, O(n), where a framework lets them be changed in place. The operations copy nothing. Each
  product of P can be differentiated by itself, in any order, without `retain_graph=True`; for that,
  `OptimalTransportSort` and `Sinkhorn` iterate again for each product that has a gradient. P can be
  pickled; it never changes, and so `copy.deepcopy(P)` is P.
- **Lists** are refused, where NumPy and SciPy convert them: which framework they belong to is not
  known. Pass `torch.tensor([...])`, `jnp.array([...])`, `tf.constant([...])` or
  `numpy.array([...])`; of a list of tensors, `torch.stack(...)`. Several `q` of a quantile and the
  rows of `P.rows` are numbers, and may stand in a list.
- **JAX without 64-bit types**, which is its default: sums are added up in float32, except in the
  native kernel, which computes in float64 inside. Where that cannot serve, on other devices and for
  derivatives other than the first in reverse mode, `"square"` takes tiles, in O(n²) time, for its
  complex terms need float64.
- **JAX**: relaxations and soft permutations are pytrees (`import softorder.jax`). Arrays in them
  are leaves; numbers are part of the program. Random draws take `key=`.
- **TensorFlow**: shapes must be known where an operation is traced; the Keras layers of
  `softorder.tensorflow` take any batch.

"""


def marks(found: dict[str, dict[str, bool]]) -> dict[str, str]:
    """Return the letters of each row."""
    return {
        row: " ".join(_MARKS[aspect] for aspect, has in aspects.items() if has)
        for row, aspects in found.items()
    }


def column(text: str, framework: str) -> dict[str, str]:
    """Return one framework's letters from the page."""
    table = text[text.index("| operation |") :]
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row[head.index(framework)] for row in rows}


def page(found: dict[str, dict[str, str]]) -> str:
    """Return the page, given the letters of each framework."""
    lines = ["| operation | " + " | ".join(found) + " |", "| --- " * (len(found) + 1) + "|"]
    for row in next(iter(found.values())):
        cells = [letters[row] for letters in found.values()]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return _ABOUT + "\n".join(lines) + "\n"


def main() -> None:
    """Examine every framework, and write the page."""
    numpy = frameworks.framework("numpy")
    found = {}
    for name in frameworks.NAMES:
        print(f"examining {name} ...", flush=True)
        found[name] = marks(parity.examine_all(frameworks.framework(name), numpy))
    PAGE.write_text(page(found))
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

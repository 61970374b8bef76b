"""The images of the experiments: found, checked, split, and put side by side."""

import functools
import gzip
import hashlib
import http.server
import struct
import tarfile
import threading

import numpy
import pytest
import torch

from softorder_experiments.data import DATASETS, LargeNumbers, Pool, datasets, files, formats, load
from softorder_experiments.data.files import Download, File
from softorder_experiments.errors import UserError


def idx(array):
    """Return the bytes of a gzipped idx file."""
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.astype(numpy.uint8).tobytes(), compresslevel=1)


def published(folder, contents):
    """Write files, and return what would be known of them had they been published."""
    downloads = []
    for name, content in contents.items():
        path = folder / "MNIST" / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        file = File(f"MNIST/raw/{name}", sha256)
        downloads.append(Download(f"https://nowhere.invalid/{name}", sha256, (file,)))
    return tuple(downloads)


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """As many images as MNIST has, of one pixel each, in the folder that the variable names."""
    numbers = numpy.arange(60_000)
    contents = {
        "train-images-idx3-ubyte.gz": idx((numbers % 251).reshape(-1, 1, 1)),
        "train-labels-idx1-ubyte.gz": idx(numbers % 10),
        "t10k-images-idx3-ubyte.gz": idx((numbers[:10_000] % 239).reshape(-1, 1, 1)),
        "t10k-labels-idx1-ubyte.gz": idx(numbers[:10_000] % 10),
    }
    downloads = published(tmp_path / "data", contents)
    monkeypatch.setenv(files.FOLDER_VARIABLE, str(tmp_path / "data"))
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    return downloads


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no network in the tests")

    monkeypatch.setattr(files.pooch.Pooch, "fetch", refuse)


def test_digits_are_there_without_a_network(no_network):
    pools = load("digits")
    assert {name: len(pool) for name, pool in pools.items()} == {
        "train": 1257,
        "validation": 180,
        "test": 360,
    }
    for pool in pools.values():
        assert pool.images.shape[1:] == (1, 8, 8)
        assert pool.images.dtype == torch.uint8
        assert pool.images.max() == pool.white == 16
        assert set(pool.labels.tolist()) == set(range(10))


def test_no_image_is_in_two_splits():
    pools = load("digits")
    seen = [{image.numpy().tobytes() for image in pool.images} for pool in pools.values()]
    assert sum(len(images) for images in seen) == len(set.union(*seen)) == 1797


def test_mnist_is_split_as_the_paper_has_it(tiny_mnist):
    pools = datasets._read_mnist(tiny_mnist)
    sizes = [len(pools[name]) for name in ("train", "validation", "test")]
    assert sizes == [55_000, 5_000, 10_000]
    assert pools["validation"].images.flatten().tolist() == [i % 251 for i in range(5_000)]
    assert pools["train"].labels[:3].tolist() == [0, 1, 2]
    assert pools["train"].images[0].item() == 5_000 % 251
    assert pools["test"].images[-1].item() == 9_999 % 239


def test_cifar_is_read_and_split(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_CIFAR_SHAPE", (3, 1, 1))
    paths = []
    for batch in range(6):
        rows = numpy.zeros((10_000, 4), numpy.uint8)
        rows[:, 0] = numpy.arange(10_000) % 10
        rows[:, 1:] = [batch, 100, 200]
        paths.append(tmp_path / f"{batch}.bin")
        paths[-1].write_bytes(rows.tobytes())
    monkeypatch.setattr(datasets, "find", lambda downloads: paths)
    pools = datasets._read_cifar10(())
    assert [len(pool) for pool in pools.values()] == [45_000, 5_000, 10_000]
    assert pools["test"].images[0].flatten().tolist() == [5, 100, 200]
    assert pools["validation"].images[:, 0].unique().tolist() == [4]
    assert pools["train"].labels[:12].tolist() == [*range(10), 0, 1]


@pytest.mark.parametrize("damage", [lambda b: b[:-100], lambda b: b[:500] + b"!" + b[501:]])
def test_a_damaged_file_is_named_and_never_read(tiny_mnist, tmp_path, damage):
    path = tmp_path / "data" / tiny_mnist[2].files[0].path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte.gz must be the published file"):
        datasets._read_mnist(tiny_mnist)


def test_missing_files_are_named_with_the_place_where_they_belong(tiny_mnist, tmp_path, no_network):
    (tmp_path / "data" / tiny_mnist[1].files[0].path).unlink()
    with pytest.raises(UserError) as caught:
        datasets._read_mnist(tiny_mnist)
    for download in tiny_mnist:
        assert download.files[0].path in str(caught.value)
    assert str(tmp_path / "data") in str(caught.value)
    assert files.FOLDER_VARIABLE in caught.value.fix


def test_an_idx_file_that_announces_more_than_it_holds_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, 100) + b"123"))
    with pytest.raises(UserError, match="must be an idx file"):
        formats.read_idx(path)


@pytest.fixture
def server(tmp_path):
    """A folder, and the address that serves it."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            return

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv(files.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_a_file_is_downloaded_once(server, cache):
    folder, address = server
    (folder / "a.gz").write_bytes(b"content")
    sha256 = hashlib.sha256(b"content").hexdigest()
    download = Download(f"{address}/a.gz", sha256, (File("MNIST/raw/a.gz", sha256),))
    assert files.find([download]) == [cache / "MNIST/raw/a.gz"]
    (folder / "a.gz").unlink()
    assert files.find([download])[0].read_bytes() == b"content"


def test_a_download_that_is_not_the_published_file_is_refused(server, cache):
    folder, address = server
    (folder / "a.gz").write_bytes(b"something else")
    sha256 = hashlib.sha256(b"content").hexdigest()
    download = Download(f"{address}/a.gz", sha256, (File("MNIST/raw/a.gz", sha256),))
    with pytest.raises(UserError, match="must be the published file"):
        files.find([download])
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_an_archive_is_downloaded_and_unpacked(server, cache, tmp_path):
    folder, address = server
    contents = {"batches/1.bin": b"one", "batches/2.bin": b"two"}
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            (tmp_path / "member").write_bytes(content)
            archive.add(tmp_path / "member", name)
    sha256 = hashlib.sha256((folder / "all.tar.gz").read_bytes()).hexdigest()
    wanted = tuple(File(n, hashlib.sha256(c).hexdigest()) for n, c in contents.items())
    paths = files.find([Download(f"{address}/all.tar.gz", sha256, wanted)])
    assert [path.read_bytes() for path in paths] == [b"one", b"two"]


def test_the_published_checksums_are_all_there():
    for name, count in {"mnist": 4, "fashion-mnist": 4, "cifar10": 6}.items():
        known = [file for download in DATASETS[name].downloads for file in download.files]
        assert len({file.sha256 for file in known}) == count
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in known)


def test_an_unknown_data_set_is_an_error_with_the_nearest_name():
    with pytest.raises(UserError, match="Did you mean 'mnist'"):
        load("mnits")


@pytest.fixture
def labelled():
    """A pool in which every pixel of an image is its label, and several images of each."""
    labels = torch.arange(40) % 10
    images = labels.to(torch.uint8)[:, None, None, None].expand(40, 1, 2, 3).contiguous()
    return Pool(images, labels, white=10)


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_a_number_is_its_digits_side_by_side(labelled, generator, digits):
    numbers = LargeNumbers(labelled, digits)
    images, values = numbers.draw((50, 7), generator)
    assert images.shape == (50, 7, *numbers.image_shape) == (50, 7, 1, 2, 3 * digits)
    seen = (images[..., 0, 0, ::3] * 10).round().long()  # the first pixel of each digit
    assert (seen == (images[..., 0, 1, 2::3] * 10).round().long()).all()
    powers = torch.tensor([10**k for k in reversed(range(digits))])
    assert ((seen * powers).sum(-1) == values).all()


def test_values_are_uniform_and_images_of_a_digit_equally_likely(generator):
    # Digit 3 has many images, but is not drawn more often.
    labels = torch.cat([torch.arange(10), torch.full((10,), 3)])
    images = torch.arange(20, dtype=torch.uint8)[:, None, None, None]
    numbers = LargeNumbers(Pool(images, labels, white=1), 1)
    images, values = numbers.draw((40_000,), generator)
    counts = values.bincount(minlength=10)
    assert counts.sub(4000).abs().max() < 300  # five standard deviations
    of_three = images[values == 3].flatten().long().bincount(minlength=20)
    drawn = of_three[of_three > 0]
    assert len(drawn) == 11
    assert drawn.sub(4000 / 11).abs().max() < 100


@pytest.mark.parametrize("shift", [0, 1])
def test_processes_that_take_a_share_make_what_one_would_make(labelled, shift):
    numbers = LargeNumbers(labelled, 3, shift)

    def draw(share):
        return numbers.draw((8, 5), torch.Generator().manual_seed(1), share)

    whole, parts = draw(slice(None)), [draw(slice(0, 4)), draw(slice(4, 8))]
    for index in (0, 1):
        assert torch.equal(whole[index], torch.cat([part[index] for part in parts]))


def test_a_moved_digit_is_itself_a_pixel_away(generator):
    image = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)
    pool = Pool(image.expand(10, 1, 3, 3).contiguous(), torch.arange(10), white=1)
    images, _ = LargeNumbers(pool, 1, shift=1).draw((500,), generator)
    padded = torch.nn.functional.pad(image[0, 0].float(), (1, 1, 1, 1))
    possible = {padded[i : i + 3, j : j + 3].numpy().tobytes() for i in range(3) for j in range(3)}
    assert {one[0].numpy().tobytes() for one in images} == possible


def test_numbers_need_images_of_every_digit():
    pool = Pool(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5))
    with pytest.raises(UserError, match="every digit"):
        LargeNumbers(pool, 2)

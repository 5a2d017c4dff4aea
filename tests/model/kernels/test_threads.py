"""Each thread that runs kernels has its own number of threads, so that two models of one process do not share it."""

from concurrent.futures import ThreadPoolExecutor

from lightwell.model.kernels import library


def test_a_thread_keeps_its_number_when_another_sets_its_own() -> None:
    library.set_num_threads(2)
    with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as third:
        other.submit(library.set_num_threads, 5).result()
        assert (library.num_threads(), other.submit(library.num_threads).result()) == (2, 5)
        assert third.submit(library.num_threads).result() == 5
        library.set_num_threads(3)
        assert other.submit(library.num_threads).result() == 5

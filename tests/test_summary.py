"""What a data module and a loader say of themselves: true, and without any file that is opened."""

from lightning_shards import LoaderConfig, SplitConfig


def test_a_module_says_what_it_was_given_and_looks_for_nothing(make_module):
    mix = {"web": {"urls": "w.tar", "weight": 1}, "hand": {"urls": "h.tar", "weight": 1}}
    module = make_module(
        SplitConfig(mix=mix, dataset_size=8),
        val=SplitConfig("http://me:secret@host/a.tar?sign=secret", batch_size=1),
        predict=SplitConfig(["/nowhere/*.tar", "c.tar"]),
    )
    assert repr(module) == str(module) == (
        "ShardDataModule: batches of label\n"
        "train: a mix of web, hand, resampled, batches of 2 samples\n"
        "val: http://host/a.tar, sequential, batches of 1 sample\n"
        "predict: ['/nowhere/*.tar', 'c.tar'], sequential, batches of 2 samples"
    )  # fmt: skip


def test_a_loader_says_what_an_epoch_is_and_who_makes_its_batches(make_module, pack_shards):
    urls = pack_shards([4, 3, 4])
    module = make_module(SplitConfig(urls, sampling="shuffled"))
    epoch = "11 samples from 3 shards, shuffled by the indexed reader"
    made = "made by the caller's own thread"
    assert repr(module.loader("train", rank=1, world_size=2)) == (
        f"ShardLoader of rank 1 of 2: {epoch}, 2 steps of 2 x 2 samples, {made}"
    )
    limited = module.loader("train").with_epoch(1)
    assert repr(limited) == f"ShardLoader: {epoch}, 1 step of 1 x 2 samples, {made}"
    threads = make_module(SplitConfig(urls), num_workers=2, loader=LoaderConfig(pool="threads"))
    assert repr(threads.loader("train")).endswith("made by 2 threads")

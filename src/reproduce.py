"""python -m src.reproduce: the paper's tables, our numbers beside its own."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from src.command import PROJECT_ROOT, command

if TYPE_CHECKING:
    from src.tables import Table

log = logging.getLogger(__name__)


NEUTRAL = {
    "dataset": ("data_dir", "download", "num_workers"),
    "model": ("cache_dir",),
    "trainer": ("log_every_n_steps", "enable_progress_bar", "enable_model_summary"),
}
"""Settings that no number depends on."""


@dataclass(frozen=True)
class Job:
    """One run of ``src.train``; its folder is named after its settings, so equal runs of several tables are one."""

    cfg: DictConfig
    dataset: str
    model: str
    folder: Path
    timed: bool


@command("reproduce")
def main(cfg: DictConfig) -> None:
    """Run what is missing, write the tables, and end with an error if a run failed."""
    from src.markdown import fill_marked_places
    from src.tables import Table, marked_texts, write_report

    output_dir = Path(cfg.output_dir)
    contents: dict[str, Any] = OmegaConf.to_object(cfg.table)  # type: ignore[assignment]
    tables = {name: Table.from_config(name, table) for name, table in contents.items()}
    jobs = {name: dict(list_jobs(table, cfg, output_dir / "runs")) for name, table in tables.items()}
    distinct = {job.folder: job for by_place in jobs.values() for job in by_place.values()}
    results: dict[Path, dict[str, Any]] = {}
    try:
        run_missing(list(distinct.values()), results, cfg.workers)
    except KeyboardInterrupt:
        raise SystemExit("Stopped. The same command goes on from here.") from None
    finally:
        placed = {
            name: {place: results[job.folder] for place, job in by_place.items() if job.folder in results}
            for name, by_place in jobs.items()
        }
        write_report(tables, placed, output_dir)
        log.info("Report: %s", output_dir / "report.md")
    if cfg.publish:
        write_report(tables, placed, PROJECT_ROOT / "docs" / "results")
        fill_marked_places(PROJECT_ROOT / "README.md", marked_texts(tables, placed))
    failed = [folder for folder, result in results.items() if result["status"] != "finished"]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(results)} runs failed; the first: {failed[0] / 'result.json'}")


def list_jobs(table: Table, cfg: DictConfig, runs_dir: Path) -> Iterator[tuple[tuple[str, str, int], Job]]:
    """Give (row, dataset, seed) and the job of each, composed just as ``src.train`` would."""
    from hydra import compose

    for name, row in table.rows.items():
        for dataset in table.datasets:
            if dataset in row.skipped:
                continue
            overrides = [f"dataset={dataset}", *table.overrides, *row.overrides, *cfg.overrides]
            full = compose("train", overrides, return_hydra_config=True)
            choices = full.hydra.runtime.choices
            job_cfg = OmegaConf.masked_copy(full, [key for key in map(str, full) if key != "hydra"])
            job_cfg.data_dir, job_cfg.keep_artifacts = cfg.data_dir, False
            job_cfg.logger = job_cfg.callbacks = None
            for seed in table.seeds:
                seeded = job_cfg.copy()
                seeded.seed = seed
                name_of_run = fingerprint(seeded) + ("-timed" if table.timed else "")
                folder = runs_dir / choices["dataset"] / choices["model"] / name_of_run
                yield (name, dataset, seed), Job(seeded, choices["dataset"], choices["model"], folder, table.timed)


def fingerprint(cfg: DictConfig) -> str:
    """First 12 hexadecimal digits of the SHA-256 of the settings that the numbers depend on."""
    settings = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(settings, dict)
    settings = {part: settings[part] for part in ("dataset", "model", "trainer", "evaluation", "seed")}
    for part, keys in NEUTRAL.items():
        for key in keys:
            settings[part].pop(key, None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def run_missing(jobs: list[Job], results: dict[Path, dict[str, Any]], workers: int) -> None:
    """Put the result of each job into ``results``: read where it is finished, else run. A failure stops no other.

    Jobs whose seconds count run first, one at a time; then the others, ``workers`` at a time with a share of the cores
    each. On small graphs that is nearly as many times faster: a step has little to do for a second core.
    """
    for job in jobs:
        path = job.folder / "result.json"
        if path.exists() and (result := json.loads(path.read_text()))["status"] == "finished":
            results[job.folder] = result
    missing = [job for job in jobs if job.folder not in results]
    log.info("%s runs: %s are finished, %s to go.", len(jobs), len(results), len(missing))
    started = time.perf_counter()
    for share, at_once in (
        ([job for job in missing if job.timed], 1),
        ([job for job in missing if not job.timed], workers),
    ):
        if not share:
            continue
        os.environ |= {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // at_once)), "TQDM_DISABLE": "1"}
        with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(run_job, job): job for job in share}
            try:
                for future in as_completed(futures):
                    job = futures[future]
                    try:
                        results[job.folder] = future.result()
                    except Exception as error:  # such as a worker killed for its memory
                        results[job.folder] = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
                    done = sum(job.folder in results for job in missing)
                    tell(job, results[job.folder], done, len(missing), time.perf_counter() - started)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def run_job(job: Job) -> dict[str, Any]:
    """Run one job in a process that serves many; a failure is a result too."""
    from src.train import record

    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        return record(job.cfg, job.folder, job.dataset, job.model)
    except Exception as error:
        return {"status": "failed", "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    finally:
        gc.collect()  # a Trainer is full of cycles, and holds the graph


def tell(job: Job, result: dict[str, Any], done: int, total: int, elapsed: float) -> None:
    """Say how a job ended, and how long the others may take."""
    label = f"[{done}/{total}] {job.model} on {job.dataset}, seed {job.cfg.seed}"
    if result["status"] != "finished":
        log.error("%s failed: %s\n%s", label, result["error"], result.get("traceback", ""))
        return
    left = elapsed / done * (total - done) / 60
    seconds = result["timing"]["wall_seconds"]
    log.info("%s: %.1f %% in %.0f s; about %.0f min to go", label, 100 * result["test_accuracy"], seconds, left)


if __name__ == "__main__":
    main()

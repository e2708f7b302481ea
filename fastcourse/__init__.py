__version__ = "0.1.0"

from importlib import import_module

# Each public name, by the module that it lives in: nothing is imported before it is asked for, and torch least of all.
_HOME = {
    "settings": "FastcourseError load_settings plain_errors short",
    "train.core": "device_facts key keyed_order keyed_uniform timer",
    "train.resize": "resize",
    "train.data": "Data beans chest_xray fashion_mnist from_arrays load spoken_digits",
    "train.markets": "energy_daily fx_daily",
    "train.series": "persistence series_task walk_forward",
    "train.splits": "group_split time_split",
    "train.folder": "from_folder",
    "train.batches": "Batches",
    "train.items": "Loaders",
    "train.models": "convnet resnet_small",
    "train.formats": "formats quantize",
    "train.vit": "resize_positions vit_small",
    "train.metrics": "accuracy at_threshold auc confusion missed_per_1000 recall_at roc threshold_at",
    "train.interval": "interval",
    "train.returns": "deflated_sharpe drawdown expected_best profit sharpe",
    "train.curves": "Curve constant cosine exponential join linear one_cycle polynomial warmup_stable_decay",
    "train.sizes": "Stages progressive strength_by_size",
    "train.recipe": "Recipe",
    "train.plan": "Plan",
    "train.position": "Batch",
    "train.history": "Diverged History",
    "train.learner": "Learner",
    "train.refresh": "bn_refresh",
    "train.preflight": "preflight",
    "train.rounded": "Rounded",
    "train.audit": "precision_audit underflow",
    "train.lr_find": "lr_find suggest sweep_plan",
    "course.judge": "Exercise judgements",
    "course.exercise": "exercises",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name not in _MODULE_OF: raise AttributeError(f"module 'fastcourse' has no attribute {name!r}")
    return getattr(import_module(f"fastcourse.{_MODULE_OF[name]}"), name)


def __dir__(): return sorted({*globals(), *__all__})

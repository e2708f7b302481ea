__version__ = "0.1.0"

from importlib import import_module

_HOME = {
    "settings": "FastcourseError load_settings short",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name):
    if name not in _MODULE_OF: raise AttributeError(f"module 'fastcourse' has no attribute {name!r}")
    return getattr(import_module(f"fastcourse.{_MODULE_OF[name]}"), name)


def __dir__(): return sorted({*globals(), *__all__})

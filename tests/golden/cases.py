"""The command lines whose results are frozen.

A case has a name and one or several command lines that run in one folder, which holds the files of
``assets``, with a store of its own. What the last command prints is kept, and every exit code.
"""

FAMILIES = [
    "lenet5", "cnn5", "har", "lstm", "transformer", "resnet18", "resnet34", "resnet50", "alexnet",
    "densenet", "googlenet", "mobilenetv1", "mobilenetv2", "proxylessnas", "resnet", "shufflenetv2",
    "squeezenet",
]  # fmt: skip
H200 = "--device nvidia-h200"
SIM = "--profile profile.json"
IMPORT = "profiles import profile.json"
LENET = "lenet5:3,5,9,11 --batch 8"


def list_cases() -> dict[str, list[str]]:
    """Return the command lines of every case by its name."""
    cases: dict[str, list[str]] = {}
    for group in (_estimates, _own_nets, _fits, _campaigns, _other_verbs, _refusals):
        for name, commands in group().items():
            assert name not in cases, name
            cases[name] = [commands] if isinstance(commands, str) else commands
    return cases


QUICK = (
    "estimate/h200/cnn5", "estimate/h200/transformer", "estimate/h200-inference/resnet18",
    "estimate/a100/resnet50", "estimate/options/01", "estimate/options/05", "estimate/options/12",
    "estimate/options/19", "estimate/options/27", "estimate/profile/0", "net/json/h200",
    "net/mlp/h200", "fit/lenet-additive/additive/0", "fit/lenet-subtractive/subtractive/0",
    "fit/lenet-ampere/ampere/0", "fit/lenet-additive/kernel-gp/0",
    "fit/lenet-subtractive/work-linear/0", "campaign/order/ampere", "campaign/measure",
    "verb/compare/1", "verb/generate/1", "verb/plan/1", "verb/inspect/1", "verb/score/published",
    "verb/profiles/list", "refusal/01", "refusal/02", "refusal/03", "refusal/09", "refusal/20",
)  # fmt: skip
"""Cheap cases of every group."""


def _estimates() -> dict[str, str]:
    cases = {}
    for one in FAMILIES:
        cases[f"estimate/h200/{one}"] = f"estimate {one} {H200} --json"
        cases[f"estimate/h200-inference/{one}"] = (
            f"estimate {one} {H200} --inference --precision bf16 --json"
        )
        cases[f"estimate/a100/{one}"] = (
            f"estimate {one} --device a100-sxm4-80gb --precision tf32 --json"
        )
    options = [
        "cnn5:8,16,32,64 --batch 16",
        "cnn5:64,128,256,512 --batch 512 --precision bf16",
        "cnn5 --precision fp16 --optimizer adam",
        "cnn5 --optimizer adamw --loss mse",
        "cnn5 --input 3x96x96",
        "cnn5 --accumulate 4 --steps 1000",
        "cnn5 --compile",
        "cnn5 --cuda-graphs",
        "cnn5 --epochs 3 --samples 50000 --price 0.30EUR --grid 400",
        "cnn5 --steps 1000 --eval-every 100 --eval-samples 5000",
        "cnn5 --steps 1000 --seen 12J/5",
        "cnn5 --runs 20 --steps 100 --grid de",
        "cnn5 --gpus 4 --parallel data",
        "cnn5 --gpus 8 --parallel data --link-gb-s 25 --precision bf16",
        "cnn5 --battery 15Wh --charge 60% --reserve 10% --rest-w 5 --steps 100",
        "cnn5 --level 50%",
        "cnn5 --estimator subtractive",
        "lenet5:1,1,1,1 --batch 1",
        "lenet5:6,16,120,84 --batch 4096 --precision tf32",
        "har:16,32,32,32 --batch 7 --optimizer adam",
        "lstm:256,2 --batch 64 --precision bf16",
        "lstm:64,1 --cuda-graphs",
        "transformer:512,8 --batch 16 --precision bf16 --optimizer adamw",
        "transformer:128,2 --checkpoint",
        "transformer:256,4 --compile --precision bf16",
        "transformer --gpus 8 --parallel data --precision bf16 --steps 10000 --price 0.2USD",
        "transformer --accumulate 8 --optimizer adamw",
        "resnet18:32 --batch 8",
        "resnet18 --precision fp16 --batch 256 --checkpoint",
        "resnet34 --precision tf32 --optimizer adam",
        "resnet50 --precision bf16 --batch 64 --gpus 2 --parallel data",
        "resnet50 --input 3x64x64 --compile",
        "resnet50 --cuda-graphs --precision bf16",
        "cnn5 --inference --inferences 100000 --batch 32",
        "resnet50 --inference --batch 64 --precision fp16 --compile",
        "transformer --inference --cuda-graphs --precision bf16",
        "mobilenetv2 --inference --batch 128 --level 80%",
        "densenet --batch 4 --precision bf16",
        "lstm --inference --batch 16",
        "har --inference --price 0.3EUR --inferences 1000000",
    ]
    for number, words in enumerate(options):
        cases[f"estimate/options/{number:02}"] = f"estimate {words} {H200} --json"
    sheets = [
        "cnn5 --device rtx-4090",
        "cnn5 --device rtx-4090 --precision bf16 --batch 1024",
        "resnet18 --device t4 --precision fp16",
        "resnet18 --device v100-sxm2-32gb --gpus 8 --parallel data",
        "transformer --device h100-sxm --precision bf16 --compile",
        "transformer --device mi300x --precision bf16 --optimizer adamw",
        "transformer --device a100-pcie-40gb --checkpoint",
        "resnet50 --device l4 --inference --batch 8",
        "lstm --device jetson-orin-nano",
        "lenet5 --device nvidia-p100-pcie-16gb --optimizer adam",
        "cnn5 --device board.toml --steps 1000 --price 0.3EUR",
        "mobilenetv2 --device b200 --precision bf16",
        "resnet50 --device rtx-3060 --batch 512",
        "har --device titan-xp --cuda-graphs",
    ]
    for number, words in enumerate(sheets):
        cases[f"estimate/sheet/{number:02}"] = f"estimate {words} --json"
    profiled = [
        "lenet5:3,5,9,11 --batch 8",
        "lenet5:4,8,16,16 --batch 8 --steps 500 --price 0.3EUR",
        "lenet5:4,8,16,16 --batch 8 --optimizer adam",
        "lenet5:2,2,2,2 --batch 4 --level 50%",
        "lenet5:4,8,16,16 --batch 8 --estimator work-linear",
        "lenet5:4,8,16,16 --batch 8 --battery 15Wh --charge 50%",
        "cnn5:4,4,4,4 --batch 8",
    ]
    for number, words in enumerate(profiled):
        cases[f"estimate/profile/{number}"] = f"estimate {words} {SIM} --json"
    return cases


def _own_nets() -> dict[str, str]:
    nets = {
        "mlp": "nets.py:make_mlp",
        "residual": "nets.py:make_residual",
        "language": "nets.py:make_language",
        "recurrent": "nets.py:make_recurrent",
        "json": "residual.json",
        "onnx": "net.onnx",
    }
    cases = {}
    for name, net in nets.items():
        cases[f"net/{name}/h200"] = f"estimate {net} {H200} --json"
        cases[f"net/{name}/sheet"] = (
            f"estimate {net} --device rtx-4090 --inference --precision bf16 --json"
        )
        cases[f"net/{name}/inspect"] = f"inspect {net} --json"
    cases["net/language/checkpoint"] = f"estimate nets.py:make_language {H200} --checkpoint --json"
    cases["net/language/adamw"] = (
        f"estimate nets.py:make_language {H200} --batch 8 --optimizer adamw --precision bf16 --json"
    )
    cases["net/residual/compile"] = f"estimate nets.py:make_residual {H200} --compile --json"
    cases["net/residual/batch"] = f"estimate nets.py:make_residual {H200} --batch 64 --json"
    cases["net/mlp/profile"] = f"estimate nets.py:make_mlp {SIM} --json"
    return cases


FITS = {
    "lenet-additive": "additive kernel-gp flops",
    "lenet-subtractive": (
        "additive subtractive ampere flops-linear work-linear constant subtractive:stop"
    ),
    "lenet-ampere": "additive subtractive ampere",
    "lenet-work-linear": "work-linear",
    "lenet-inference": "additive",
    "lenet-kernel-gp": "additive kernel-gp",
    "transformer-additive": "additive",
    "transformer-subtractive": "additive subtractive subtractive-blocks",
}
"""Kept observations, whose files hold no fits, and the estimators that are fitted to them."""


def _fits() -> dict[str, str]:
    cases = {}
    for name, estimators in FITS.items():
        nets = ["lenet5:3,5,9,11", "lenet5:4,8,16,16", "lenet5:1,2,4,4"]
        words = "--batch 8"
        if name.startswith("transformer"):
            nets, words = ["transformer:24,2", "transformer:32,1", "transformer:8,2"], "--batch 4"
        if name in ("lenet-inference", "lenet-kernel-gp"):
            words += " --inference"
        for estimator in estimators.split():
            for number, net in enumerate(nets):
                cases[f"fit/{name}/{estimator}/{number}"] = (
                    f"estimate {net} {words} --profile observed-{name}.json "
                    f"--estimator {estimator} --json"
                )
    return cases


def _campaigns() -> dict[str, str | list[str]]:
    lenet = "profile lenet5:4,8,16,16 --batch 8 --on simulated:7"
    export = "data export simulated-7 @out.csv"
    return {
        "campaign/order/additive": [f"{lenet} --points 20", export],
        "campaign/order/subtractive": [f"{lenet} --points 20 --estimator subtractive", export],
        "campaign/order/ampere": [f"{lenet} --points 20 --estimator ampere", export],
        "campaign/order/kernel-gp": [
            f"{lenet} --points 12 --inference --estimator kernel-gp",
            export,
        ],
        "campaign/order/missing": [f"{lenet} --missing", export],
        "campaign/order/time": [
            f"{lenet} --points 12 --estimator subtractive --acquisition time",
            export,
        ],
        "campaign/order/transformer": [
            "profile transformer:16,2 --batch 4 --on simulated:7 --points 15",
            export,
        ],
        "campaign/estimate": [f"{lenet} --points 16", f"estimate {LENET} --device sim --json"],
        "campaign/measure": "measure lenet5:4,8,16,16 --batch 8 --on simulated:7 --json",
        "campaign/evaluate": (
            "evaluate lenet5 --batch 8 --on simulated:7 --nets 2 --seconds 2 "
            "--estimators additive,subtractive,work-linear --json"
        ),
    }


def _other_verbs() -> dict[str, str | list[str]]:
    now = "--now 2030-05-01T22:00 --json"
    runs = "data import runs.csv --device phone --json"
    search = "search lenet5:4,8,16,16 --device sim --batch 8 --budget 105%"
    prune = "prune nets.py:make_residual"
    return {
        "verb/compare/1": (
            "compare cnn5 --devices nvidia-h200,rtx-4090 --batch 32,128 "
            "--precision fp32,bf16 --json"
        ),
        "verb/compare/2": (
            "compare resnet18 --devices h100-sxm,mi300x,t4 --batch 64 --optimizer sgd,adamw "
            "--samples 100000 --epochs 2 --price 0.30EUR --grid de --json"
        ),
        "verb/compare/3": (
            "compare transformer --devices nvidia-h200 --gpus 1,4,8 --parallel data "
            "--precision bf16 --json"
        ),
        "verb/compare/4": "compare cnn5 --devices l4,t4 --inference --batch 1,8 --json",
        "verb/compare/5": [IMPORT, f"compare {LENET.replace('8', '8,16', 1)} --devices sim --json"],
        "verb/generate/1": f"generate nets.py:make_language {H200} --json",
        "verb/generate/2": (
            f"generate nets.py:make_language {H200} --batch 8 --prompt-tokens 300 --new-tokens 50 "
            "--cuda-graphs --precision fp16 --json"
        ),
        "verb/generate/3": "generate nets.py:make_language --device rtx-4090 --json",
        "verb/plan/1": [IMPORT, f"plan jobs.toml {now}"],
        "verb/plan/2": [IMPORT, f"plan jobs.toml --confidence 90% {now}"],
        "verb/plan/3": f"plan gpus.toml {now}",
        "verb/search/1": [IMPORT, f"{search} --candidates 60 --seed 3 --json"],
        "verb/search/2": [
            IMPORT,
            f"{search} --candidates 40 --vary c1=2..4/2 --vary f1=16 --vary batch=4,8 --json",
        ],
        "verb/prune/1": f"{prune} {H200} --batch 64 --budget 99% --json",
        "verb/prune/2": "prune cnn5:8,16,16,16 --device rtx-4090 --batch 1024 --budget 85% --json",
        "verb/prune/3": (
            "prune cnn5:8,16,16,16 --device rtx-4090 --batch 512 --budget 80% --strategy uniform "
            "--multiple 4 --json"
        ),
        "verb/inspect/1": "inspect cnn5 --json",
        "verb/inspect/2": "inspect transformer:64,2 --batch 4 --optimizer adamw --json",
        "verb/inspect/3": "inspect resnet18 --inference --precision bf16 --json",
        "verb/inspect/4": "inspect resnet50 --blocks --json",
        "verb/inspect/5": "inspect lstm --accumulate 2 --json",
        "verb/devices/all": "devices --json",
        "verb/devices/one": "devices rtx-4090 --json",
        "verb/devices/file": "devices board.toml --json",
        "verb/devices/add": ["devices --add board.toml", "devices my-card --json"],
        "verb/profiles/list": "profiles list --json",
        "verb/profiles/import": [IMPORT, "profiles list --json"],
        "verb/profiles/show": [IMPORT, "profiles show sim --json"],
        "verb/profiles/shipped": "profiles show nvidia-h200 --json",
        "verb/profiles/again": [
            IMPORT,
            "profiles export sim again.json",
            f"estimate {LENET} --profile again.json --json",
        ],
        "verb/profiles/remove": [IMPORT, "profiles remove sim", "profiles list --json"],
        "verb/score/published": "score --published --json",
        "verb/score/simulated": "score --on simulated:7 --tdp 15W --json",
        "verb/data/import": runs,
        "verb/data/predict": [
            runs,
            "data predict lenet5:4,8,16,16 --device phone --steps 200 --batch 16 --json",
        ],
        "verb/data/estimate": [runs, "estimate lenet5:4,8,16,16 --device phone --batch 16 --json"],
        "verb/data/export": [IMPORT, "data export sim @out.csv"],
        "verb/data/codecarbon": [IMPORT, "data export sim @out.csv --format codecarbon --grid 400"],
        "verb/data/kernels": [
            "profiles import observed-lenet-kernel-gp.json",
            "data export sim @out.csv --level kernel",
        ],
        "verb/report/html": [IMPORT, "report sim --json"],
        "verb/version": "--version",
    }


def _refusals() -> dict[str, str | list[str]]:
    lines: list[str | list[str]] = [
        "estimate",
        "estimate nosuch --device nvidia-h200",
        "estimate cnn5 --device nosuch",
        "estimate cnn5 --on nosuch",
        "estimate cnn5 --on simulated:7",
        "estimate cnn5:1,2,3,4,5 --device nvidia-h200",
        "estimate cnn5:0,1,1,1 --device nvidia-h200",
        "estimate cnn5 --device nvidia-h200 --batch 0",
        "estimate cnn5 --device nvidia-h200 --batch x",
        "estimate cnn5 --device nvidia-h200 --steps 0",
        "estimate cnn5 --device nvidia-h200 --precision fp8",
        "estimate cnn5 --device nvidia-h200 --precision int8",
        "estimate cnn5 --device nvidia-h200 --optimizer lion",
        "estimate cnn5 --device nvidia-h200 --level 200%",
        "estimate cnn5 --device nvidia-h200 --estimator luck",
        "estimate cnn5 --device nvidia-h200 --steps 5 --epochs 2",
        "estimate cnn5 --device nvidia-h200 --epochs 2",
        "estimate cnn5 --device nvidia-h200 --inferences 5",
        "estimate cnn5 --device nvidia-h200 --inference --optimizer adam",
        "estimate cnn5 --device nvidia-h200 --price much",
        "estimate cnn5 --device nvidia-h200 --grid atlantis",
        "estimate cnn5 --device nvidia-h200 --battery 15",
        "estimate cnn5 --device nvidia-h200 --charge 50%",
        "estimate cnn5 --device nvidia-h200 --seen 12",
        "estimate cnn5 --device nvidia-h200 --gpus 0",
        "estimate cnn5 --device nvidia-h200 --link-gb-s 5",
        "estimate cnn5 --device nvidia-h200 --input 3xx",
        "estimate cnn5 --device nvidia-h200 --profile profile.json",
        "estimate cnn5 --device nvidia-h200 --nosuch",
        "estimate cnn5 --device t4 --precision bf16",
        "estimate cnn5 --profile missing.json",
        "estimate cnn5 --profile nojson.json",
        "estimate cnn5 --device bad_board.toml",
        "estimate cnn5 --device missing.toml",
        "estimate missing.py:make --device nvidia-h200",
        "estimate nets.py:nosuch --device nvidia-h200",
        "estimate nets.py:make_broken --device nvidia-h200",
        "estimate nets.py:make_nothing --device nvidia-h200",
        "estimate nets.py:number --device nvidia-h200",
        "estimate nets.py --device nvidia-h200",
        "estimate damaged.json --device nvidia-h200",
        "estimate nojson.json --device nvidia-h200",
        "estimate broken.onnx --device nvidia-h200",
        "estimate missing.onnx --device nvidia-h200",
        f"estimate {LENET} --profile observed-lenet-additive.json --estimator neuralpower",
        "compare cnn5 --devices nosuch",
        "compare cnn5 --devices nvidia-h200 --batch 0",
        "compare cnn5 --devices t4 --precision bf16",
        "generate cnn5 --device nvidia-h200",
        "generate missing.py:make --device nvidia-h200",
        "plan missing.toml",
        "plan bad_jobs.toml",
        "plan broken.toml",
        "plan jobs.toml --now noon",
        "search lenet5 --device nvidia-h200",
        "search lenet5 --device nvidia-h200 --budget 5",
        [IMPORT, "search lenet5:4,8,16,16 --device sim --batch 8 --budget 1nJ"],
        "prune lenet5 --device nvidia-h200 --budget nothing",
        "inspect nosuch",
        "devices nosuch",
        "devices --add missing.toml",
        "devices --add bad_board.toml",
        "profiles show nosuch",
        "profiles export nosuch out.json",
        "profiles import nojson.json",
        "profiles remove nosuch",
        "profiles nosuch",
        "profile cnn5 --on nosuch",
        "profile --on simulated:7",
        "profile nosuch --on simulated:7",
        "profile cnn5 --atlas --on simulated:7",
        "measure nosuch --on simulated:7",
        "measure --on simulated:7",
        "measure cnn5 --on simulated:7 --meter nosuch",
        "evaluate lenet5:1,2,3,4 --on simulated:7",
        "score --devices nosuch",
        "data export nosuch out.csv",
        "data import missing.csv --device phone",
        "data attach missing.csv",
        "report nosuch",
        "nosuch",
        "",
        "--nosuch",
        "profile lenet5:1,1,1,1 --on simulated:7 --store /proc/nosuch/store.sqlite",
    ]
    return {f"refusal/{number:02}": words for number, words in enumerate(lines)}

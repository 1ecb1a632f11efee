"""One training process of `larder bench live --torch`: it trains a small network on batches of the daemon.

The first line of its standard input is a JSON object that says what to train; it reports what it does in JSON lines on
standard output: ready (it can begin, and waits for a line that says so), begin (it wants an epoch), got (a batch, how
long it waited, the ids), step (how long it trained on it), end (of the epoch). """

import json
import sys
import time


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    import larder
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(int(spec["threads"]))
    loader = larder.Loader(
        spec["dataset"],
        batch_size=spec["batch"],
        shuffle=spec["shuffle"],
        order=spec["order"] or None,
        seed=spec["seed"],
        subset=spec["subset"] or None,
        drop_last=spec["drop_last"],
        share=spec["share"],
        prefetch=spec["prefetch"],
        epochs=spec["epochs"],
        job=spec["job"],
        endpoint=spec["socket"],
        output="torch",
        return_index=True,
        transform=[larder.ops.RandomResizedCrop(spec["crop"]), larder.ops.RandomHorizontalFlip()],
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, spec["classes"]),
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def say(**what: object) -> None:
        print(json.dumps(what), flush=True)

    # what torch does once is no part of the training
    net(torch.zeros(1, 3, spec["crop"], spec["crop"])).sum().backward()
    say(event="ready")
    if not sys.stdin.readline():
        return
    for epoch in range(spec["epochs"]):
        say(event="begin", epoch=epoch)
        asked = time.monotonic()
        for images, labels, index in loader:
            waited = time.monotonic() - asked
            say(event="got", epoch=epoch, waited=waited, ids=index.tolist())
            begun = time.monotonic()
            x = images.float() / 255
            if x.shape[-1] == 3:  # HWC
                x = x.permute(0, 3, 1, 2)
            loss = torch.nn.functional.cross_entropy(net(x), labels.long() % spec["classes"])
            opt.zero_grad()
            loss.backward()
            opt.step()
            del images, labels, index, x
            asked = time.monotonic()
            say(event="step", took=asked - begun, loss=float(loss.detach()))
        say(event="end", epoch=epoch)
    loader.close()


main()

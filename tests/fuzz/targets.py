"""Every reader of strangers' bytes, with seeds that it takes: what a fuzzer starts from.

A target is called with bytes. It gives anything, or raises a FalajError: any other error is a finding, and so is one
that takes too long or too much memory. A new parser gets a line here.
"""

import asyncio
import io
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: its name, how it is called, and what it takes."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def targets() -> dict[str, Target]:
    """All of them, by name."""
    every = (*_words(), *_documents(), *_blocks(), *_inference(), *_models(), *_web())
    return {one.name: one for one in every}


def _text(name: str, read: Callable[[str], object], *seeds: str) -> Target:
    """A reader of texts: what is no UTF-8 was refused before it, but a text may hold anything else."""
    return Target(name, lambda data: read(data.decode("utf-8", "replace")), tuple(seed.encode() for seed in seeds))


def _words() -> tuple[Target, ...]:
    """Small languages: what people and programs write in one line."""
    from falaj.api.http_server import ListenAddress
    from falaj.audit.signed_note import parse_checkpoint
    from falaj.backends.node_kinds import read_node_kinds
    from falaj.catalog.gate_rules import parse_rule
    from falaj.core.label import Label
    from falaj.core.outbox import _parse_cursor
    from falaj.core.ref import Ref
    from falaj.core.tracing import parse_traceparent as parse_trace
    from falaj.exchange.oci_registry import RegistryLocation
    from falaj.fleet.budgets import read_budget
    from falaj.flows.cron import load_time_zone, parse_cron
    from falaj.flows.event_mail import parse_mailto
    from falaj.flows.http_sender import is_public_address, parse_webhook_url
    from falaj.study.search_space import read_space
    from falaj.track.metric_points import parse_cursor
    from falaj.track.search_language import parse_columns, parse_filter, parse_order

    return (
        _text("ref", Ref.parse, "dataset:fraud/transactions@v3", "model:a/b@champion"),
        _text("label", Label.parse, "AE-PDPL,sensitive,purpose=fraud,category=health", "3"),
        _text("cron", parse_cron, "*/5 8-18 * jan-mar mon,fri", "@daily", "0 0 1 1 7"),
        _text("time zone", load_time_zone, "Asia/Dubai", "UTC"),
        _text("hook address", parse_webhook_url, "https://hooks.example:8443/a?b=c", "https://[2001:db8::1]/"),
        _text("ip address", is_public_address, "10.0.0.1", "::ffff:127.0.0.1", "fe80::1%eth0"),
        _text("mail address", parse_mailto, "mailto:ops@bank.example"),
        _text("filter of runs", parse_filter, "metrics.loss < 0.5 AND params.\"a b\" = 'x'", "tags.a LIKE '%b'"),
        _text("order of runs", lambda text: parse_order((text,)), "metrics.loss DESC", "status"),
        _text("columns of runs", parse_columns, 'status, params.lr, metrics."valid loss"'),
        _text("cursor of a curve", parse_cursor, "3 1.5 -0.25"),
        _text("cursor of an outbox", _parse_cursor, '{"rank-0": [1, 20]}'),
        _text("gate rule", parse_rule, "signature", "2 approvals", "auc >= 1.1 * current", "bias"),
        _text("budget", read_budget, "gpu-hours=500/month:stop", "money=1000/30d"),
        _text("kinds of nodes", read_node_kinds, "gpu:cpus=16000,memory=65536,gpus=8,most=4"),
        _text("search space", lambda text: read_space([text]), "lr=log:0.001..0.1", "n=int:1..9/2", "a=x|y"),
        _text(
            "place in a registry",
            RegistryLocation.parse,
            "registry.example:5000/a/b:v1",
            f"r.example/a@sha256:{'0' * 64}",
        ),
        _text("listening address", ListenAddress.parse, "[::1]:8470", "127.0.0.1:80"),
        _text("traceparent", parse_trace, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        _text(
            "signed note",
            parse_checkpoint,
            f"o\n1\n{'A' * 43}=\ntime 1\nnumber 0\nprevious -\nkey {'A' * 43}=\n\n- o AAAA\n",
        ),
    )


def _documents() -> tuple[Target, ...]:
    """JSON, YAML and TOML, read before anybody knows who wrote them."""
    from falaj.api.argument_decoding import check_json_depth
    from falaj.catalog.model_signing import verify_signature
    from falaj.core.event import Event
    from falaj.core.jwt_claims import read_token
    from falaj.core.model_manifest import read_manifest
    from falaj.core.outbox import _parse_facts
    from falaj.drift.profiles import read_profile
    from falaj.exchange.dvc import DvcProject
    from falaj.exchange.oci import ArtifactManifest, _decode_document
    from falaj.exchange.untrusted_input import read_json_object, read_yaml
    from falaj.flows.inbound_webhooks import _parse_message, _read_path
    from falaj.govern.policy_engine import parse_tenant_rule
    from falaj.govern.regimes import read_regime
    from falaj.infer.server_config import parse_config
    from falaj.jobs.records import JobSpec
    from falaj.store.codec import from_json
    from tests.fuzz import seeds as s

    def dvc(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / ".dvc").mkdir()
            (Path(folder) / "a.dvc").write_bytes(data)
            return DvcProject(Path(folder)).outs()

    return (
        Target("profile of data", read_profile, (s.PROFILE,)),
        Target("sheet of a model", read_manifest, (s.SHEET,)),
        Target("config of a server", parse_config, (s.CONFIG,)),
        Target("event", Event.decode, (s.EVENT,)),
        Target("facts of an outbox", _parse_facts, (b'{"kind":"metric","value":1}\n{"kind":"end"}\n',)),
        Target("record in JSON", lambda data: from_json(JobSpec, data), (s.JOB,)),
        Target("depth of JSON", lambda data: check_json_depth(data, 32), (b'{"a":[[{}]]}',)),
        Target(
            "webhook",
            lambda data: [_read_path(_parse_message(data), path) for path in ("a.b", "list.0", "n")],
            (s.WEBHOOK,),
        ),
        Target("document in JSON", lambda data: read_json_object(data, "it"), (b'{"a": [1, null]}',)),
        Target("document in YAML", lambda data: read_yaml(data, "it"), (b"a: [1, {b: c}]\nd: &x 2\ne: *x\n",)),
        Target("DVC project", dvc, (f"outs:\n- md5: {'a' * 32}\n  size: 1\n  path: data\n".encode(),)),
        Target("OCI manifest", lambda data: _decode_document(data, ArtifactManifest, "it"), (s.MANIFEST,)),
        _text(
            "policy", lambda text: parse_tenant_rule("a", text), "forbid(principal, action, resource) when { 1 == 2 };"
        ),
        _text("regime", read_regime, *s.regimes()),
        _text("token", lambda text: read_token(text, ("EdDSA", "RS256")), s.token()),
        _text("signature of a model", lambda text: verify_signature(text, s.public_key(), {"a": "0" * 64}), s.bundle()),
    )


def _blocks() -> tuple[Target, ...]:
    """Bytes of our own formats, which lie where others may write."""
    from falaj.asof.column_stats import stats_from_plain
    from falaj.asof.person_sealing import decode_person_keys
    from falaj.audit.falaj_verify import TrustedKeys, check_proof
    from falaj.audit.log_sealing import decode_tile
    from falaj.drift.tally_encoding import join_encoded
    from falaj.exchange.untrusted_input import read_json
    from falaj.features.serving_skew import pack_reads, unpack_reads
    from falaj.fleet.figure_frames import FigureFrame
    from falaj.snapshot.tree_format import decode_page, decode_recipe
    from falaj.store.backup import RowTally, decode_rows
    from falaj.store.backup_target import BackupContents, BackupManifest, _decode_contents, _decode_manifest
    from falaj.store.series_backup import read_frames as read_measures
    from falaj.track.metric_points import unpack_columns, unpack_heads, unpack_points
    from tests.fuzz import seeds as s

    def frame(data: bytes) -> object:
        return FigureFrame.unpack(zlib.compress(data, 0))

    def tally(data: bytes) -> object:
        return join_encoded([data[:4] + zlib.compress(data[4:], 0)])

    def proof(data: bytes) -> object:
        return check_proof(data, TrustedKeys([]))

    return (
        Target("page of a tree", decode_page, s.pages()),
        Target("recipe of a file", lambda data: decode_recipe(data, 0), s.recipes()),
        Target("tally", tally, (s.tally(),)),
        Target("packed tally", lambda data: join_encoded([data]), (s.packed_tally(),)),
        Target("telemetry", frame, (b'[2,["gpu.util"]]\n' + bytes(range(32)),)),
        Target("packed telemetry", FigureFrame.unpack, (zlib.compress(b'[2,["gpu.util"]]\n' + bytes(32)),)),
        Target("points", unpack_points, (s.points(),)),
        Target("heads of curves", unpack_heads, (s.heads(),)),
        Target("curve", unpack_columns, (s.columns(),)),
        Target("table of keys", decode_person_keys, (s.keys(),)),
        Target("statistics of a column", lambda data: stats_from_plain(read_json(data, "it")), (s.stats(),)),
        Target("proof of an event", proof, (s.proof(),)),
        Target("backup", lambda data: sum(1 for _ in decode_rows([data], RowTally())), (s.backup(),)),
        Target("measurements of a backup", lambda data: [*read_measures([data])], (s.backup_measures(),)),
        Target("manifest of a backup", lambda data: _decode_manifest(data, BackupManifest), (s.backup_manifest(),)),
        Target("contents of a backup", lambda data: _decode_contents(data, BackupContents), (s.backup_contents(),)),
        _text("tile of the log", decode_tile, "A" * 86 + "=="),
        _text("sample of reads", unpack_reads, pack_reads(())),
    )


def _inference() -> tuple[Target, ...]:
    """What endpoints and replicas are sent."""
    from falaj.gateway.request_paths import find_grpc_sequence, find_sequence, parse_target
    from falaj.oip import rest_codec, upstream_frames
    from falaj.oip.compression import inflate_body
    from falaj.oip.hpack_cache import CallHeadCache
    from falaj.oip.http1_parser import Http1Limits, Http1Parser
    from falaj.oip.http2_frames import decode_settings
    from falaj.oip.infer_messages import decode_infer_request, peek_model
    from falaj.oip.packed_varints import unpack_varints
    from tests.fuzz import seeds as s
    from tests.oip.test_h2 import _conversation, _spoken

    return (
        Target("inference in JSON", lambda data: rest_codec.decode_request(data, -1, "m", ""), (s.INFER,)),
        Target(
            "inference in JSON and bytes",
            lambda data: rest_codec.decode_request(data, len(s.BINARY), "m", ""),
            (s.BINARY_BODY,),
        ),
        Target("inference in protobuf", lambda data: (peek_model(data), decode_infer_request(data)), s.protobuf()),
        Target("packed numbers", unpack_varints, (b"\x01\x80\x01\xff\xff\xff\xff\x0f",)),
        Target("gzip body", lambda data: inflate_body(data, b"deflate", 1 << 16), (zlib.compress(b"a" * 99),)),
        Target("HTTP/1.1", lambda data: Http1Parser(Http1Limits(), {}).feed(data), (s.HTTP1, s.HTTP1_CHUNKED)),
        Target("HTTP/2", lambda data: asyncio.run(_spoken([data])), (_conversation(),)),
        Target("settings of HTTP/2", lambda data: decode_settings(data[: len(data) // 6 * 6]), (bytes(12),)),
        Target("headers of HTTP/2", lambda data: CallHeadCache(1 << 14).read(data), (s.hpack(),)),
        Target(
            "hop request",
            upstream_frames.decode_http_request,
            (
                struct.pack("<BHH", 4, 3, 3) + b"POST/v2a\0bbody",
                struct.pack("<BHH", 4, 3, 20) + b"POST/v2falaj-request\0id\0a\0bbody",
            ),
        ),
        Target("hop answer", upstream_frames.decode_http_reply, (struct.pack("<HIBH", 200, 0, 1, 3) + b"ja\0bbody",)),
        Target("hop call", upstream_frames.decode_grpc_request, (struct.pack("<IBH", 9, 2, 3) + b"MIa\0bbody",)),
        Target("hop result", upstream_frames.decode_grpc_reply, (struct.pack("<BBHH", 0, 1, 2, 3) + b"oka\0bbody",)),
        Target("hop word", upstream_frames.decode_json_object, (b'{"a":1}',)),
        Target("path of an endpoint", parse_target, (b"/v2/models/fraud.score/versions/1/infer", b"/v2/health/ready")),
        Target(
            "sequence", lambda data: (find_sequence({}, data), find_grpc_sequence({}, data)), (b'{"sequence_id": 7}',)
        ),
    )


def _models() -> tuple[Target, ...]:
    """Files of models and tables, looked at before anybody loads them."""
    from falaj.content.archives import inspect_archive, is_pickled_array
    from falaj.content.model_formats import inspect_model, read_tensor_table
    from falaj.infer.runtimes.safetensors_weights import read_tensors
    from tests.fuzz import seeds as s

    def file(name: str) -> Callable[[bytes], object]:
        def look(data: bytes) -> object:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / name).write_bytes(data)
                return inspect_model(Path(folder))

        return look

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("schema.json", '{"__module__": "sklearn", "__class__": "A"}')
        archive.writestr("a.npy", s.NPY)
    archive_ = packed.getvalue()
    return (
        Target("weights", lambda data: read_tensor_table(io.BytesIO(data), len(data)), (s.safetensors(),)),
        Target("weights that are loaded", read_tensors, (s.safetensors(),)),
        Target("archive", lambda data: inspect_archive(io.BytesIO(data), len(data)), (archive_,)),
        Target("array", is_pickled_array, (s.NPY,)),
        Target("ONNX", file("model.onnx"), s.onnx()),
        Target("file without a name", file("model"), (archive_, s.NPY, s.safetensors(), b'{"learner": {}}', b"tree\n")),
        Target("file of JSON", file("model.json"), (b'{"learner": {"a": 1}}',)),
    )


def _web() -> tuple[Target, ...]:
    """Forms, cookies, paths, and the bodies of other people's clients."""
    from falaj.api.argument_decoding import ArgumentDecoder, encode_arguments_header
    from falaj.api.mlflow import coding, runs, traces
    from falaj.api.routes import RequestContext, decode_path_part
    from falaj.catalog.version_lifecycle import LifecycleOperations
    from falaj.console.operation_forms import bind_form_arguments, parse_form
    from falaj.console.session_cookies import check_origin, read_flash, read_preferences, read_session_id
    from falaj.core.operation import get_operation
    from falaj.flows.webhook_signatures import STYLE_GITHUB, STYLE_STANDARD, verify_webhook_signature
    from tests.fuzz import seeds as s

    verb = get_operation(LifecycleOperations, "hold")

    def asked(**more: bytes) -> Any:
        scope = {"method": "POST", "path": "/console/", "headers": []}
        ask = RequestContext(scope, None, None)  # type: ignore[arg-type]
        ask.headers = {b"host": b"h:1", b"cookie": more.get("cookie", b""), b"origin": more.get("origin", b"")}
        return ask

    def signed(data: bytes) -> object:
        text, words = data.decode("latin-1"), ("webhook-id", "webhook-timestamp", "webhook-signature")
        headers = dict(zip((*words, "x-hub-signature-256"), text.split("\n"), strict=False))
        style = STYLE_GITHUB if len(headers) == 4 else STYLE_STANDARD
        return verify_webhook_signature(style, [b"whsec_c2VjcmV0"], headers, b"body", 1.0)

    def cookies(data: bytes) -> object:
        ask = asked(cookie=data)
        return read_preferences(ask), read_flash(ask), read_session_id(ask, False), read_session_id(ask, True)

    return (
        Target(
            "form",
            lambda data: bind_form_arguments(verb, parse_form(data)),
            (b"f.name=dataset%3Aa%2Fb&f.why=x&_given=%7B%7D&_key=x",),
        ),
        Target("cookies", cookies, (b"falaj-1=tok; falaj-look=ar|dark|arab|x; falaj-said=good|%D9%85",)),
        Target("origin", lambda data: check_origin(asked(origin=data)), (b"http://h:1", b"null")),
        Target("name in a path", decode_path_part, (b"a%20b", b"%C3%BC")),
        Target("signature of a webhook", signed, (b"id\n1\nv1,AAAA v1,BBBB", b"\n\n\nsha256=00")),
        Target(
            "arguments of a verb", ArgumentDecoder("catalog", verb).decode, (b'{"name": "dataset:a/b", "why": "x"}',)
        ),
        _text(
            "arguments in a header",
            ArgumentDecoder("catalog", verb).decode_header,
            encode_arguments_header(b'{"name": "dataset:a/b", "why": "x"}'),
        ),
        Target("batch of MLflow", coding.create_body_decoder(runs.LogBatchRequest), (s.BATCH,)),
        Target("trace of MLflow", coding.create_body_decoder(traces.StartTraceRequest), (s.TRACE,)),
        Target(
            "query of MLflow",
            lambda data: coding.decode_query(runs.CreateRunRequest, data),
            (b"run_name=a%20b&start_time=1",),
        ),
    )


@cache
def names() -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(targets())

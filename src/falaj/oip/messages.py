"""The messages of inference.GRPCInferenceService: the Open Inference Protocol's, and those Triton's clients add."""

from falaj.oip.wire import Message, message

SERVICE = "inference.GRPCInferenceService"

NOTHING = message("")
PARAMETER = message(
    "1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 double_param double, 5 uint64_param uint64",
    choice=True,
)
CONTENTS = message(
    "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*, 4 uint_contents uint32*,"
    "5 uint64_contents uint64*, 6 fp32_contents float*, 7 fp64_contents double*, 8 bytes_contents bytes*"
)
_TENSOR = "1 name string, 2 datatype string, 3 shape int64*"
TENSOR = message(f"{_TENSOR}, 4 parameters Value%, 5 contents Contents", Value=PARAMETER, Contents=CONTENTS)
WANTED = message("1 name string, 2 parameters Value%", Value=PARAMETER)
INFER_REQUEST = message(
    "1 model_name string, 2 model_version string, 3 id string, 4 parameters Value%, 5 inputs Tensor*,"
    "6 outputs Wanted*, 7 raw_input_contents bytes*",
    Value=PARAMETER, Tensor=TENSOR, Wanted=WANTED,
)  # fmt: skip
INFER_RESPONSE = message(
    "1 model_name string, 2 model_version string, 3 id string, 4 parameters Value%, 5 outputs Tensor*,"
    "6 raw_output_contents bytes*",
    Value=PARAMETER, Tensor=TENSOR,
)  # fmt: skip
STREAM_RESPONSE = message("1 error_message string, 2 infer_response Answer", Answer=INFER_RESPONSE)

LIVE = message("1 live bool")
READY = message("1 ready bool")
NAMED = message("1 name string, 2 version string")
SERVER_METADATA = message("1 name string, 2 version string, 3 extensions string*")
MODEL_METADATA = message(
    "1 name string, 2 versions string*, 3 platform string, 4 inputs Tensor*, 5 outputs Tensor*", Tensor=message(_TENSOR)
)

REPOSITORY_PARAMETER = message(
    "1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 bytes_param bytes", choice=True
)
INDEX_REQUEST = message("1 repository_name string, 2 ready bool")
INDEX_RESPONSE = message(
    "1 models Model*", Model=message("1 name string, 2 version string, 3 state string, 4 reason string")
)
LOAD_REQUEST = message("1 repository_name string, 2 model_name string, 3 parameters Value%", Value=REPOSITORY_PARAMETER)

_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
DATA_TYPES = {f"TYPE_{name}": number for number, name in enumerate(_TYPES)}
KINDS = {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3}
_VERSIONS = message(
    "1 latest Latest, 2 all All, 3 specific Specific",
    Latest=message("1 num_versions uint32"), All=NOTHING, Specific=message("1 versions int64*"), choice=True,
)  # fmt: skip
_BATCHING = message(
    "1 preferred_batch_size int32*, 2 max_queue_delay_microseconds uint64, 3 preserve_ordering bool,"
    "4 priority_levels uint64, 5 default_priority_level uint64"
)
_SEQUENCES = message(
    "1 max_sequence_idle_microseconds uint64, 5 state State*",
    State=message("1 input_name string, 2 output_name string, 3 data_type Type, 4 dims int64*", Type=DATA_TYPES),
)
_STEP = message(
    "1 model_name string, 2 model_version int64, 3 input_map string%, 4 output_map string%, 5 model_namespace string"
)
MODEL_CONFIG = message(
    "1 name string, 2 platform string, 3 version_policy Versions, 4 max_batch_size int32, 5 input Input*,"
    "6 output Output*, 7 instance_group Group*, 8 default_model_filename string, 10 metric_tags string%,"
    "11 dynamic_batching Batching, 13 sequence_batching Sequences, 14 parameters Text%, 15 ensemble_scheduling Steps,"
    "17 backend string, 19 model_transaction_policy Policy, 24 response_cache Cache, 25 runtime string",
    Versions=_VERSIONS,
    Input=message("1 name string, 2 data_type Type, 4 dims int64*, 8 optional bool", Type=DATA_TYPES),
    Output=message("1 name string, 2 data_type Type, 3 dims int64*, 4 label_filename string", Type=DATA_TYPES),
    Group=message("1 name string, 2 count int32, 3 gpus int32*, 4 kind Kind", Kind=KINDS),
    Batching=_BATCHING,
    Sequences=_SEQUENCES,
    Text=message("1 string_value string"),
    Steps=message("1 step Step*", Step=_STEP),
    Policy=message("1 decoupled bool"),
    Cache=message("1 enable bool"),
)
CONFIG_RESPONSE = message("1 config Config", Config=MODEL_CONFIG)

_TIMES = message("1 count uint64, 2 ns uint64")
_PHASES = (
    "1 success Times, 2 fail Times, 3 queue Times, 4 compute_input Times, 5 compute_infer Times,"
    "6 compute_output Times, 7 cache_hit Times, 8 cache_miss Times"
)
_BATCHES = "1 batch_size uint64, 2 compute_input Times, 3 compute_infer Times, 4 compute_output Times"
_ANSWERS = (
    "1 compute_infer Times, 2 compute_output Times, 3 success Times, 4 fail Times, 5 empty_response Times,"
    "6 cancel Times"
)
MODEL_STATISTICS = message(
    "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, 5 execution_count uint64,"
    "6 inference_stats Phases, 7 batch_stats Batches*, 8 memory_usage Memory*, 9 response_stats Answers%",
    Phases=message(_PHASES, Times=_TIMES),
    Batches=message(_BATCHES, Times=_TIMES),
    Memory=message("1 type string, 2 id int64, 3 byte_size uint64"),
    Answers=message(_ANSWERS, Times=_TIMES),
)
STATISTICS_RESPONSE = message("1 model_stats Model*", Model=MODEL_STATISTICS)

METHODS: dict[str, tuple[Message, Message]] = {
    "ServerLive": (NOTHING, LIVE),
    "ServerReady": (NOTHING, READY),
    "ModelReady": (NAMED, READY),
    "ServerMetadata": (NOTHING, SERVER_METADATA),
    "ModelMetadata": (NAMED, MODEL_METADATA),
    "ModelInfer": (INFER_REQUEST, INFER_RESPONSE),
    "ModelStreamInfer": (INFER_REQUEST, STREAM_RESPONSE),
    "ModelConfig": (NAMED, CONFIG_RESPONSE),
    "ModelStatistics": (NAMED, STATISTICS_RESPONSE),
    "RepositoryIndex": (INDEX_REQUEST, INDEX_RESPONSE),
    "RepositoryModelLoad": (LOAD_REQUEST, NOTHING),
    "RepositoryModelUnload": (LOAD_REQUEST, NOTHING),
}
"""What each method takes and gives. The first is the request."""

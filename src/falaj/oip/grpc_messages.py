"""The messages of inference.GRPCInferenceService: the Open Inference Protocol's, and those Triton's clients add."""

from falaj.oip.protobuf import MessageType, define_message

SERVICE_NAME = "inference.GRPCInferenceService"

EMPTY = define_message("")
PARAMETER = define_message(
    "1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 double_param double, 5 uint64_param uint64",
    is_oneof=True,
)
CONTENTS = define_message(
    "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*, 4 uint_contents uint32*,"
    "5 uint64_contents uint64*, 6 fp32_contents float*, 7 fp64_contents double*, 8 bytes_contents bytes*"
)
_TENSOR = "1 name string, 2 datatype string, 3 shape int64*"
TENSOR = define_message(f"{_TENSOR}, 4 parameters Value%, 5 contents Contents", Value=PARAMETER, Contents=CONTENTS)
REQUESTED_OUTPUT = define_message("1 name string, 2 parameters Value%", Value=PARAMETER)
INFER_REQUEST = define_message(
    "1 model_name string, 2 model_version string, 3 id string, 4 parameters Value%, 5 inputs Tensor*,"
    "6 outputs Wanted*, 7 raw_input_contents bytes*",
    Value=PARAMETER,
    Tensor=TENSOR,
    Wanted=REQUESTED_OUTPUT,
)
INFER_RESPONSE = define_message(
    "1 model_name string, 2 model_version string, 3 id string, 4 parameters Value%, 5 outputs Tensor*,"
    "6 raw_output_contents bytes*",
    Value=PARAMETER,
    Tensor=TENSOR,
)
STREAM_RESPONSE = define_message("1 error_message string, 2 infer_response Answer", Answer=INFER_RESPONSE)

LIVE = define_message("1 live bool")
READY = define_message("1 ready bool")
MODEL_NAME = define_message("1 name string, 2 version string")
SERVER_METADATA = define_message("1 name string, 2 version string, 3 extensions string*")
MODEL_METADATA = define_message(
    "1 name string, 2 versions string*, 3 platform string, 4 inputs Tensor*, 5 outputs Tensor*",
    Tensor=define_message(_TENSOR),
)

REPOSITORY_PARAMETER = define_message(
    "1 bool_param bool, 2 int64_param int64, 3 string_param string, 4 bytes_param bytes", is_oneof=True
)
INDEX_REQUEST = define_message("1 repository_name string, 2 ready bool")
INDEX_RESPONSE = define_message(
    "1 models Model*", Model=define_message("1 name string, 2 version string, 3 state string, 4 reason string")
)
LOAD_REQUEST = define_message(
    "1 repository_name string, 2 model_name string, 3 parameters Value%", Value=REPOSITORY_PARAMETER
)

_TYPES = (
    "INVALID",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
)
DATA_TYPES = {f"TYPE_{name}": number for number, name in enumerate(_TYPES)}
KINDS = {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3}
_VERSIONS = define_message(
    "1 latest Latest, 2 all All, 3 specific Specific",
    Latest=define_message("1 num_versions uint32"),
    All=EMPTY,
    Specific=define_message("1 versions int64*"),
    is_oneof=True,
)
_BATCHING = define_message(
    "1 preferred_batch_size int32*, 2 max_queue_delay_microseconds uint64, 3 preserve_ordering bool,"
    "4 priority_levels uint64, 5 default_priority_level uint64"
)
_SEQUENCES = define_message(
    "1 max_sequence_idle_microseconds uint64, 5 state State*",
    State=define_message("1 input_name string, 2 output_name string, 3 data_type Type, 4 dims int64*", Type=DATA_TYPES),
)
_STEP = define_message(
    "1 model_name string, 2 model_version int64, 3 input_map string%, 4 output_map string%, 5 model_namespace string"
)
MODEL_CONFIG = define_message(
    "1 name string, 2 platform string, 3 version_policy Versions, 4 max_batch_size int32, 5 input Input*,"
    "6 output Output*, 7 instance_group Group*, 8 default_model_filename string, 10 metric_tags string%,"
    "11 dynamic_batching Batching, 13 sequence_batching Sequences, 14 parameters Text%, 15 ensemble_scheduling Steps,"
    "17 backend string, 19 model_transaction_policy Policy, 24 response_cache Cache, 25 runtime string",
    Versions=_VERSIONS,
    Input=define_message("1 name string, 2 data_type Type, 4 dims int64*, 8 optional bool", Type=DATA_TYPES),
    Output=define_message("1 name string, 2 data_type Type, 3 dims int64*, 4 label_filename string", Type=DATA_TYPES),
    Group=define_message("1 name string, 2 count int32, 3 gpus int32*, 4 kind Kind", Kind=KINDS),
    Batching=_BATCHING,
    Sequences=_SEQUENCES,
    Text=define_message("1 string_value string"),
    Steps=define_message("1 step Step*", Step=_STEP),
    Policy=define_message("1 decoupled bool"),
    Cache=define_message("1 enable bool"),
)
CONFIG_RESPONSE = define_message("1 config Config", Config=MODEL_CONFIG)

_TIMES = define_message("1 count uint64, 2 ns uint64")
_PHASES = (
    "1 success Times, 2 fail Times, 3 queue Times, 4 compute_input Times, 5 compute_infer Times,"
    "6 compute_output Times, 7 cache_hit Times, 8 cache_miss Times"
)
_BATCHES = "1 batch_size uint64, 2 compute_input Times, 3 compute_infer Times, 4 compute_output Times"
_ANSWERS = (
    "1 compute_infer Times, 2 compute_output Times, 3 success Times, 4 fail Times, 5 empty_response Times,"
    "6 cancel Times"
)
MODEL_STATISTICS = define_message(
    "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, 5 execution_count uint64,"
    "6 inference_stats Phases, 7 batch_stats Batches*, 8 memory_usage Memory*, 9 response_stats Answers%",
    Phases=define_message(_PHASES, Times=_TIMES),
    Batches=define_message(_BATCHES, Times=_TIMES),
    Memory=define_message("1 type string, 2 id int64, 3 byte_size uint64"),
    Answers=define_message(_ANSWERS, Times=_TIMES),
)
STATISTICS_RESPONSE = define_message("1 model_stats Model*", Model=MODEL_STATISTICS)

METHODS: dict[str, tuple[MessageType, MessageType]] = {
    "ServerLive": (EMPTY, LIVE),
    "ServerReady": (EMPTY, READY),
    "ModelReady": (MODEL_NAME, READY),
    "ServerMetadata": (EMPTY, SERVER_METADATA),
    "ModelMetadata": (MODEL_NAME, MODEL_METADATA),
    "ModelInfer": (INFER_REQUEST, INFER_RESPONSE),
    "ModelStreamInfer": (INFER_REQUEST, STREAM_RESPONSE),
    "ModelConfig": (MODEL_NAME, CONFIG_RESPONSE),
    "ModelStatistics": (MODEL_NAME, STATISTICS_RESPONSE),
    "RepositoryIndex": (INDEX_REQUEST, INDEX_RESPONSE),
    "RepositoryModelLoad": (LOAD_REQUEST, EMPTY),
    "RepositoryModelUnload": (LOAD_REQUEST, EMPTY),
}
"""What each method takes and gives. The first is the request."""

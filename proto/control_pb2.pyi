from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatusRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class JobRequest(_message.Message):
    __slots__ = ("brief",)
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    brief: bool
    def __init__(self, brief: bool = ...) -> None: ...

class WorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Member(_message.Message):
    __slots__ = ("node", "name", "group_rank", "rank_offset", "nproc", "role", "role_offset", "control")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NPROC_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ROLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    node: str
    name: str
    group_rank: int
    rank_offset: int
    nproc: int
    role: str
    role_offset: int
    control: str
    def __init__(self, node: _Optional[str] = ..., name: _Optional[str] = ..., group_rank: _Optional[int] = ..., rank_offset: _Optional[int] = ..., nproc: _Optional[int] = ..., role: _Optional[str] = ..., role_offset: _Optional[int] = ..., control: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("name", "phase", "because", "round", "group_rank", "world_size", "members", "restarts_used", "max_restarts", "spare", "hosting", "coordinating", "worker_pids", "log_dir", "preload", "run_id", "pid", "min_nodes", "max_nodes", "store_trouble", "requests")
    class WorkerPidsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    MAX_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    HOSTING_FIELD_NUMBER: _ClassVar[int]
    COORDINATING_FIELD_NUMBER: _ClassVar[int]
    WORKER_PIDS_FIELD_NUMBER: _ClassVar[int]
    LOG_DIR_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    phase: str
    because: str
    round: int
    group_rank: int
    world_size: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    restarts_used: int
    max_restarts: int
    spare: bool
    hosting: bool
    coordinating: bool
    worker_pids: _containers.ScalarMap[int, int]
    log_dir: str
    preload: str
    run_id: str
    pid: int
    min_nodes: int
    max_nodes: int
    store_trouble: str
    requests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., phase: _Optional[str] = ..., because: _Optional[str] = ..., round: _Optional[int] = ..., group_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping[str, object]]]] = ..., restarts_used: _Optional[int] = ..., max_restarts: _Optional[int] = ..., spare: bool = ..., hosting: bool = ..., coordinating: bool = ..., worker_pids: _Optional[_Mapping[int, int]] = ..., log_dir: _Optional[str] = ..., preload: _Optional[str] = ..., run_id: _Optional[str] = ..., pid: _Optional[int] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., store_trouble: _Optional[str] = ..., requests: _Optional[_Iterable[str]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "state", "group_rank", "rank_offset", "nproc", "heard_age_s", "restarts_left", "own", "because", "round", "waits", "control")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GROUP_RANK_FIELD_NUMBER: _ClassVar[int]
    RANK_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NPROC_FIELD_NUMBER: _ClassVar[int]
    HEARD_AGE_S_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    group_rank: int
    rank_offset: int
    nproc: int
    heard_age_s: float
    restarts_left: int
    own: bool
    because: str
    round: int
    waits: bool
    control: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., group_rank: _Optional[int] = ..., rank_offset: _Optional[int] = ..., nproc: _Optional[int] = ..., heard_age_s: _Optional[float] = ..., restarts_left: _Optional[int] = ..., own: bool = ..., because: _Optional[str] = ..., round: _Optional[int] = ..., waits: bool = ..., control: _Optional[str] = ...) -> None: ...

class Ending(_message.Message):
    __slots__ = ("round", "kind", "because", "charged", "rank", "failure", "judged")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: str
    because: str
    charged: str
    rank: int
    failure: str
    judged: str
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[str] = ..., because: _Optional[str] = ..., charged: _Optional[str] = ..., rank: _Optional[int] = ..., failure: _Optional[str] = ..., judged: _Optional[str] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("act", "label", "because", "at", "over")
    ACT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    act: str
    label: str
    because: str
    at: int
    over: bool
    def __init__(self, act: _Optional[str] = ..., label: _Optional[str] = ..., because: _Optional[str] = ..., at: _Optional[int] = ..., over: bool = ...) -> None: ...

class OtherNodes(_message.Message):
    __slots__ = ("nodes", "placed")
    NODES_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    placed: int
    def __init__(self, nodes: _Optional[int] = ..., placed: _Optional[int] = ...) -> None: ...

class Capacity(_message.Message):
    __slots__ = ("needed", "helpful", "suspects", "spare")
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    HELPFUL_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    needed: int
    helpful: int
    suspects: _containers.RepeatedScalarFieldContainer[str]
    spare: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, needed: _Optional[int] = ..., helpful: _Optional[int] = ..., suspects: _Optional[_Iterable[str]] = ..., spare: _Optional[_Iterable[str]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("run_id", "name", "source", "announced_age_s", "phase", "because", "round", "round_age_s", "min_nodes", "max_nodes", "world_size", "restarts", "nodes", "ended", "agreement", "outcome", "finishing", "store", "store_trouble", "lease_s", "age_s", "last_event", "command", "ends_in_s", "checkpoints", "capacity", "others", "store_latency_s")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_AGE_S_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUND_AGE_S_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STORE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    STORE_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    source: str
    announced_age_s: float
    phase: str
    because: str
    round: int
    round_age_s: float
    min_nodes: int
    max_nodes: int
    world_size: int
    restarts: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    ended: Ending
    agreement: Agreement
    outcome: str
    finishing: bool
    store: str
    store_trouble: str
    lease_s: float
    age_s: float
    last_event: int
    command: str
    ends_in_s: float
    checkpoints: str
    capacity: Capacity
    others: OtherNodes
    store_latency_s: float
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., source: _Optional[str] = ..., announced_age_s: _Optional[float] = ..., phase: _Optional[str] = ..., because: _Optional[str] = ..., round: _Optional[int] = ..., round_age_s: _Optional[float] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., world_size: _Optional[int] = ..., restarts: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping[str, object]]]] = ..., ended: _Optional[_Union[Ending, _Mapping[str, object]]] = ..., agreement: _Optional[_Union[Agreement, _Mapping[str, object]]] = ..., outcome: _Optional[str] = ..., finishing: bool = ..., store: _Optional[str] = ..., store_trouble: _Optional[str] = ..., lease_s: _Optional[float] = ..., age_s: _Optional[float] = ..., last_event: _Optional[int] = ..., command: _Optional[str] = ..., ends_in_s: _Optional[float] = ..., checkpoints: _Optional[str] = ..., capacity: _Optional[_Union[Capacity, _Mapping[str, object]]] = ..., others: _Optional[_Union[OtherNodes, _Mapping[str, object]]] = ..., store_latency_s: _Optional[float] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("rank", "local_rank", "pid", "state", "age_s", "written_bytes", "rss_bytes", "cpu_s", "section", "steps", "mark_age_s", "stdout_file", "stderr_file", "importing")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    SECTION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MARK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FILE_FIELD_NUMBER: _ClassVar[int]
    STDERR_FILE_FIELD_NUMBER: _ClassVar[int]
    IMPORTING_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    pid: int
    state: str
    age_s: float
    written_bytes: float
    rss_bytes: float
    cpu_s: float
    section: str
    steps: int
    mark_age_s: float
    stdout_file: str
    stderr_file: str
    importing: bool
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ..., age_s: _Optional[float] = ..., written_bytes: _Optional[float] = ..., rss_bytes: _Optional[float] = ..., cpu_s: _Optional[float] = ..., section: _Optional[str] = ..., steps: _Optional[int] = ..., mark_age_s: _Optional[float] = ..., stdout_file: _Optional[str] = ..., stderr_file: _Optional[str] = ..., importing: bool = ...) -> None: ...

class Workers(_message.Message):
    __slots__ = ("name", "round", "workers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    round: int
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    def __init__(self, name: _Optional[str] = ..., round: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping[str, object]]]] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("since", "follow")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    since: int
    follow: bool
    def __init__(self, since: _Optional[int] = ..., follow: bool = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("number", "time_s", "at_s", "node", "what", "happened", "phase", "round", "because", "restarts_used", "failure", "members", "version", "restarts", "ended", "outcome", "exit_code", "missed", "id", "cause", "stage", "took_s", "step", "watch", "until_s", "form")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    HAPPENED_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_USED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_s: float
    at_s: float
    node: str
    what: str
    happened: str
    phase: str
    round: int
    because: str
    restarts_used: int
    failure: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    version: int
    restarts: int
    ended: Ending
    outcome: str
    exit_code: int
    missed: int
    id: str
    cause: str
    stage: str
    took_s: float
    step: int
    watch: str
    until_s: float
    form: int
    def __init__(self, number: _Optional[int] = ..., time_s: _Optional[float] = ..., at_s: _Optional[float] = ..., node: _Optional[str] = ..., what: _Optional[str] = ..., happened: _Optional[str] = ..., phase: _Optional[str] = ..., round: _Optional[int] = ..., because: _Optional[str] = ..., restarts_used: _Optional[int] = ..., failure: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping[str, object]]]] = ..., version: _Optional[int] = ..., restarts: _Optional[int] = ..., ended: _Optional[_Union[Ending, _Mapping[str, object]]] = ..., outcome: _Optional[str] = ..., exit_code: _Optional[int] = ..., missed: _Optional[int] = ..., id: _Optional[str] = ..., cause: _Optional[str] = ..., stage: _Optional[str] = ..., took_s: _Optional[float] = ..., step: _Optional[int] = ..., watch: _Optional[str] = ..., until_s: _Optional[float] = ..., form: _Optional[int] = ...) -> None: ...

class GoodputRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SpentTime(_message.Message):
    __slots__ = ("bucket", "length_s")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_S_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    length_s: float
    def __init__(self, bucket: _Optional[str] = ..., length_s: _Optional[float] = ...) -> None: ...

class LostTime(_message.Message):
    __slots__ = ("round", "kind", "length_s", "node", "because")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LENGTH_S_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: str
    length_s: float
    node: str
    because: str
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[str] = ..., length_s: _Optional[float] = ..., node: _Optional[str] = ..., because: _Optional[str] = ...) -> None: ...

class RankSteps(_message.Message):
    __slots__ = ("rank", "steps", "stepped_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPPED_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    steps: int
    stepped_s: float
    def __init__(self, rank: _Optional[int] = ..., steps: _Optional[int] = ..., stepped_s: _Optional[float] = ...) -> None: ...

class Goodput(_message.Message):
    __slots__ = ("name", "wall_s", "workers", "share", "measured", "buckets", "lost", "ranks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    wall_s: float
    workers: int
    share: float
    measured: bool
    buckets: _containers.RepeatedCompositeFieldContainer[SpentTime]
    lost: _containers.RepeatedCompositeFieldContainer[LostTime]
    ranks: _containers.RepeatedCompositeFieldContainer[RankSteps]
    def __init__(self, name: _Optional[str] = ..., wall_s: _Optional[float] = ..., workers: _Optional[int] = ..., share: _Optional[float] = ..., measured: bool = ..., buckets: _Optional[_Iterable[_Union[SpentTime, _Mapping[str, object]]]] = ..., lost: _Optional[_Iterable[_Union[LostTime, _Mapping[str, object]]]] = ..., ranks: _Optional[_Iterable[_Union[RankSteps, _Mapping[str, object]]]] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ("ranks", "native")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    native: bool
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., native: bool = ...) -> None: ...

class StackGroup(_message.Message):
    __slots__ = ("ranks", "at", "waits", "text")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    at: str
    waits: bool
    text: str
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., at: _Optional[str] = ..., waits: bool = ..., text: _Optional[str] = ...) -> None: ...

class Stacks(_message.Message):
    __slots__ = ("name", "round", "groups", "native")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    round: int
    groups: _containers.RepeatedCompositeFieldContainer[StackGroup]
    native: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., round: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[StackGroup, _Mapping[str, object]]]] = ..., native: _Optional[_Iterable[str]] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("ranks", "tail_bytes", "follow", "tail_lines")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    tail_bytes: int
    follow: bool
    tail_lines: int
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., tail_bytes: _Optional[int] = ..., follow: bool = ..., tail_lines: _Optional[int] = ...) -> None: ...

class LogPart(_message.Message):
    __slots__ = ("rank", "stream", "text", "file", "missed_bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    MISSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    stream: str
    text: str
    file: str
    missed_bytes: float
    def __init__(self, rank: _Optional[int] = ..., stream: _Optional[str] = ..., text: _Optional[str] = ..., file: _Optional[str] = ..., missed_bytes: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason", "job", "requeue")
    REASON_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    REQUEUE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    job: bool
    requeue: bool
    def __init__(self, reason: _Optional[str] = ..., job: bool = ..., requeue: bool = ...) -> None: ...

class RestartRoundRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("reason", "label")
    REASON_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    label: str
    def __init__(self, reason: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class SetWatchRequest(_message.Message):
    __slots__ = ("names", "table")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    names: str
    table: str
    def __init__(self, names: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

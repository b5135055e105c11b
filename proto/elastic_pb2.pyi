from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    WAITING: _ClassVar[NodeState]
    WORKING: _ClassVar[NodeState]
    BROKEN: _ClassVar[NodeState]
    STOPPING: _ClassVar[NodeState]
    FINISHED: _ClassVar[NodeState]
    LEAVING: _ClassVar[NodeState]
    ENDED: _ClassVar[NodeState]

class RoundPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_PHASE_UNSPECIFIED: _ClassVar[RoundPhase]
    GATHERING: _ClassVar[RoundPhase]
    LAST_CALL: _ClassVar[RoundPhase]
    RUNNING: _ClassVar[RoundPhase]
    OVER: _ClassVar[RoundPhase]
    CLOSED: _ClassVar[RoundPhase]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_NONE: _ClassVar[Outcome]
    SUCCEEDED: _ClassVar[Outcome]
    FAILED: _ClassVar[Outcome]
    JOIN_TIMED_OUT: _ClassVar[Outcome]
    UNFINISHED: _ClassVar[Outcome]
    ABANDONED: _ClassVar[Outcome]
    MISCONFIGURED: _ClassVar[Outcome]
    KILLED: _ClassVar[Outcome]
    PREEMPTED: _ClassVar[Outcome]

class Act(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACT_UNSPECIFIED: _ClassVar[Act]
    SAVE: _ClassVar[Act]
    SETTLE: _ClassVar[Act]
    RESTART: _ClassVar[Act]
    PREEMPT: _ClassVar[Act]
    KILL: _ClassVar[Act]

class EndKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_KIND_UNSPECIFIED: _ClassVar[EndKind]
    FAILURE: _ClassVar[EndKind]
    DEPARTURE: _ClassVar[EndKind]
    ARRIVAL: _ClassVar[EndKind]
    PLANNED: _ClassVar[EndKind]
    PREEMPTION: _ClassVar[EndKind]

class Sign(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIGN_UNSPECIFIED: _ClassVar[Sign]
    UNCLEAR: _ClassVar[Sign]
    OWN: _ClassVar[Sign]
    PEER: _ClassVar[Sign]
    TIMEOUT: _ClassVar[Sign]
    STOPPED: _ClassVar[Sign]
    STANDING: _ClassVar[Sign]
    LEFT: _ClassVar[Sign]
    QUIET: _ClassVar[Sign]
    HOST: _ClassVar[Sign]
    CUT_OFF: _ClassVar[Sign]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    CAUSE: _ClassVar[Role]
    COLLATERAL: _ClassVar[Role]
    UNDECIDED: _ClassVar[Role]
NODE_STATE_UNSPECIFIED: NodeState
WAITING: NodeState
WORKING: NodeState
BROKEN: NodeState
STOPPING: NodeState
FINISHED: NodeState
LEAVING: NodeState
ENDED: NodeState
ROUND_PHASE_UNSPECIFIED: RoundPhase
GATHERING: RoundPhase
LAST_CALL: RoundPhase
RUNNING: RoundPhase
OVER: RoundPhase
CLOSED: RoundPhase
OUTCOME_NONE: Outcome
SUCCEEDED: Outcome
FAILED: Outcome
JOIN_TIMED_OUT: Outcome
UNFINISHED: Outcome
ABANDONED: Outcome
MISCONFIGURED: Outcome
KILLED: Outcome
PREEMPTED: Outcome
ACT_UNSPECIFIED: Act
SAVE: Act
SETTLE: Act
RESTART: Act
PREEMPT: Act
KILL: Act
END_KIND_UNSPECIFIED: EndKind
FAILURE: EndKind
DEPARTURE: EndKind
ARRIVAL: EndKind
PLANNED: EndKind
PREEMPTION: EndKind
SIGN_UNSPECIFIED: Sign
UNCLEAR: Sign
OWN: Sign
PEER: Sign
TIMEOUT: Sign
STOPPED: Sign
STANDING: Sign
LEFT: Sign
QUIET: Sign
HOST: Sign
CUT_OFF: Sign
ROLE_UNSPECIFIED: Role
CAUSE: Role
COLLATERAL: Role
UNDECIDED: Role

class WorkerFailure(_message.Message):
    __slots__ = ("node", "host", "rank", "local_rank", "pid", "exit_code", "message", "error_file", "at", "startup", "final", "order", "after_s", "stopped_by", "sign", "sign_because", "suspects", "said", "note", "lived_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FILE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STARTUP_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    AFTER_S_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    SIGN_FIELD_NUMBER: _ClassVar[int]
    SIGN_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    LIVED_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    host: str
    rank: int
    local_rank: int
    pid: int
    exit_code: int
    message: str
    error_file: str
    at: str
    startup: bool
    final: bool
    order: int
    after_s: float
    stopped_by: int
    sign: Sign
    sign_because: str
    suspects: _containers.RepeatedScalarFieldContainer[int]
    said: str
    note: str
    lived_s: float
    def __init__(self, node: _Optional[str] = ..., host: _Optional[str] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., message: _Optional[str] = ..., error_file: _Optional[str] = ..., at: _Optional[str] = ..., startup: bool = ..., final: bool = ..., order: _Optional[int] = ..., after_s: _Optional[float] = ..., stopped_by: _Optional[int] = ..., sign: _Optional[_Union[Sign, str]] = ..., sign_because: _Optional[str] = ..., suspects: _Optional[_Iterable[int]] = ..., said: _Optional[str] = ..., note: _Optional[str] = ..., lived_s: _Optional[float] = ...) -> None: ...

class Judged(_message.Message):
    __slots__ = ("death", "role", "because")
    DEATH_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    death: WorkerFailure
    role: Role
    because: str
    def __init__(self, death: _Optional[_Union[WorkerFailure, _Mapping[str, object]]] = ..., role: _Optional[_Union[Role, str]] = ..., because: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("number", "act", "label", "because")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    number: int
    act: Act
    label: str
    because: str
    def __init__(self, number: _Optional[int] = ..., act: _Optional[_Union[Act, str]] = ..., label: _Optional[str] = ..., because: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("agreement", "bound", "done")
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    agreement: int
    bound: int
    done: bool
    def __init__(self, agreement: _Optional[int] = ..., bound: _Optional[int] = ..., done: bool = ...) -> None: ...

class Served(_message.Message):
    __slots__ = ("node", "number")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    node: str
    number: int
    def __init__(self, node: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("number", "act", "label", "because", "at", "over", "requests", "round")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    number: int
    act: Act
    label: str
    because: str
    at: int
    over: bool
    requests: _containers.RepeatedCompositeFieldContainer[Served]
    round: int
    def __init__(self, number: _Optional[int] = ..., act: _Optional[_Union[Act, str]] = ..., label: _Optional[str] = ..., because: _Optional[str] = ..., at: _Optional[int] = ..., over: bool = ..., requests: _Optional[_Iterable[_Union[Served, _Mapping[str, object]]]] = ..., round: _Optional[int] = ...) -> None: ...

class NodeRecord(_message.Message):
    __slots__ = ("version", "node", "name", "state", "seq", "round", "nproc", "role", "addr", "port", "preferred_rank", "restarts_left", "failure", "finished", "because", "min_nodes", "max_nodes", "deaths", "charge_local", "all_exits_reported", "grace_s", "requests", "answer", "control", "witness_port", "fenced_round", "permitted_round", "alone_s", "presence", "ended_here", "store", "vote_port", "magic")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NPROC_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDR_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PREFERRED_RANK_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_LEFT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    CHARGE_LOCAL_FIELD_NUMBER: _ClassVar[int]
    ALL_EXITS_REPORTED_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    WITNESS_PORT_FIELD_NUMBER: _ClassVar[int]
    FENCED_ROUND_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_ROUND_FIELD_NUMBER: _ClassVar[int]
    ALONE_S_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_HERE_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    VOTE_PORT_FIELD_NUMBER: _ClassVar[int]
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    version: int
    node: str
    name: str
    state: NodeState
    seq: int
    round: int
    nproc: int
    role: str
    addr: str
    port: int
    preferred_rank: int
    restarts_left: int
    failure: WorkerFailure
    finished: bool
    because: str
    min_nodes: int
    max_nodes: int
    deaths: _containers.RepeatedCompositeFieldContainer[WorkerFailure]
    charge_local: bool
    all_exits_reported: bool
    grace_s: float
    requests: _containers.RepeatedCompositeFieldContainer[Request]
    answer: Answer
    control: str
    witness_port: int
    fenced_round: int
    permitted_round: int
    alone_s: float
    presence: str
    ended_here: _containers.RepeatedScalarFieldContainer[str]
    store: str
    vote_port: int
    magic: int
    def __init__(self, version: _Optional[int] = ..., node: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[NodeState, str]] = ..., seq: _Optional[int] = ..., round: _Optional[int] = ..., nproc: _Optional[int] = ..., role: _Optional[str] = ..., addr: _Optional[str] = ..., port: _Optional[int] = ..., preferred_rank: _Optional[int] = ..., restarts_left: _Optional[int] = ..., failure: _Optional[_Union[WorkerFailure, _Mapping[str, object]]] = ..., finished: bool = ..., because: _Optional[str] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., deaths: _Optional[_Iterable[_Union[WorkerFailure, _Mapping[str, object]]]] = ..., charge_local: bool = ..., all_exits_reported: bool = ..., grace_s: _Optional[float] = ..., requests: _Optional[_Iterable[_Union[Request, _Mapping[str, object]]]] = ..., answer: _Optional[_Union[Answer, _Mapping[str, object]]] = ..., control: _Optional[str] = ..., witness_port: _Optional[int] = ..., fenced_round: _Optional[int] = ..., permitted_round: _Optional[int] = ..., alone_s: _Optional[float] = ..., presence: _Optional[str] = ..., ended_here: _Optional[_Iterable[str]] = ..., store: _Optional[str] = ..., vote_port: _Optional[int] = ..., magic: _Optional[int] = ...) -> None: ...

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

class Ending(_message.Message):
    __slots__ = ("round", "kind", "because", "charged", "failure", "role", "judged")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    round: int
    kind: EndKind
    because: str
    charged: str
    failure: WorkerFailure
    role: Role
    judged: _containers.RepeatedCompositeFieldContainer[Judged]
    def __init__(self, round: _Optional[int] = ..., kind: _Optional[_Union[EndKind, str]] = ..., because: _Optional[str] = ..., charged: _Optional[str] = ..., failure: _Optional[_Union[WorkerFailure, _Mapping[str, object]]] = ..., role: _Optional[_Union[Role, str]] = ..., judged: _Optional[_Iterable[_Union[Judged, _Mapping[str, object]]]] = ...) -> None: ...

class Crowd(_message.Message):
    __slots__ = ("nodes", "workers", "pages", "digest")
    NODES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    workers: int
    pages: int
    digest: bytes
    def __init__(self, nodes: _Optional[int] = ..., workers: _Optional[int] = ..., pages: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class RoleSize(_message.Message):
    __slots__ = ("role", "workers")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    role: str
    workers: int
    def __init__(self, role: _Optional[str] = ..., workers: _Optional[int] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("version", "members", "roles", "magic")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    version: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    roles: _containers.RepeatedCompositeFieldContainer[RoleSize]
    magic: int
    def __init__(self, version: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping[str, object]]]] = ..., roles: _Optional[_Iterable[_Union[RoleSize, _Mapping[str, object]]]] = ..., magic: _Optional[int] = ...) -> None: ...

class Witness(_message.Message):
    __slots__ = ("node", "addr", "port", "store")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDR_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    node: str
    addr: str
    port: int
    store: str
    def __init__(self, node: _Optional[str] = ..., addr: _Optional[str] = ..., port: _Optional[int] = ..., store: _Optional[str] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("version", "record", "epoch", "number", "phase", "because", "members", "master_addr", "master_port", "ended", "restarts", "finishing", "outcome", "hold", "unsettled", "agreement", "served", "crowd", "witnesses", "coordinator", "voters", "before", "host", "finished", "magic")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDR_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    CROWD_FIELD_NUMBER: _ClassVar[int]
    WITNESSES_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    version: int
    record: int
    epoch: int
    number: int
    phase: RoundPhase
    because: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    master_addr: str
    master_port: int
    ended: Ending
    restarts: int
    finishing: bool
    outcome: Outcome
    hold: bool
    unsettled: Ending
    agreement: Agreement
    served: _containers.RepeatedCompositeFieldContainer[Served]
    crowd: Crowd
    witnesses: _containers.RepeatedCompositeFieldContainer[Witness]
    coordinator: str
    voters: _containers.RepeatedCompositeFieldContainer[Witness]
    before: _containers.RepeatedScalarFieldContainer[str]
    host: Witness
    finished: _containers.RepeatedScalarFieldContainer[str]
    magic: int
    def __init__(self, version: _Optional[int] = ..., record: _Optional[int] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., phase: _Optional[_Union[RoundPhase, str]] = ..., because: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping[str, object]]]] = ..., master_addr: _Optional[str] = ..., master_port: _Optional[int] = ..., ended: _Optional[_Union[Ending, _Mapping[str, object]]] = ..., restarts: _Optional[int] = ..., finishing: bool = ..., outcome: _Optional[_Union[Outcome, str]] = ..., hold: bool = ..., unsettled: _Optional[_Union[Ending, _Mapping[str, object]]] = ..., agreement: _Optional[_Union[Agreement, _Mapping[str, object]]] = ..., served: _Optional[_Iterable[_Union[Served, _Mapping[str, object]]]] = ..., crowd: _Optional[_Union[Crowd, _Mapping[str, object]]] = ..., witnesses: _Optional[_Iterable[_Union[Witness, _Mapping[str, object]]]] = ..., coordinator: _Optional[str] = ..., voters: _Optional[_Iterable[_Union[Witness, _Mapping[str, object]]]] = ..., before: _Optional[_Iterable[str]] = ..., host: _Optional[_Union[Witness, _Mapping[str, object]]] = ..., finished: _Optional[_Iterable[str]] = ..., magic: _Optional[int] = ...) -> None: ...

class JobRecord(_message.Message):
    __slots__ = ("version", "spec_hash", "command", "min_nodes", "max_nodes", "nproc", "node", "name", "at", "incarnation", "outcome", "secret", "lease_s", "magic")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    NPROC_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    version: int
    spec_hash: bytes
    command: str
    min_nodes: int
    max_nodes: int
    nproc: str
    node: str
    name: str
    at: str
    incarnation: int
    outcome: Outcome
    secret: bytes
    lease_s: float
    magic: int
    def __init__(self, version: _Optional[int] = ..., spec_hash: _Optional[bytes] = ..., command: _Optional[str] = ..., min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., nproc: _Optional[str] = ..., node: _Optional[str] = ..., name: _Optional[str] = ..., at: _Optional[str] = ..., incarnation: _Optional[int] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., secret: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., magic: _Optional[int] = ...) -> None: ...

package job

// EventType names what an event says of checkpoints and interruptions (69§243–244): what reads
// events may rely on it, where the words of a message may change. Who reads them may meet one
// twice, and goes by the run and the number (69§245). Append only.
type EventType string

// Event types. Routine preemption is among them, and is no audit (CK-245).
const (
	CheckpointRequested        EventType = "checkpoint_requested"         // somebody asked for one
	CheckpointStarted          EventType = "checkpoint_started"           // one is being taken, and it is not a matter of a moment
	CheckpointCreated          EventType = "checkpoint_created"           // committed
	CheckpointValidationFailed EventType = "checkpoint_validation_failed" // not committed, or committed and not believed any more
	CheckpointRevoked          EventType = "checkpoint_revoked"
	CheckpointDeleted          EventType = "checkpoint_deleted" // by a person; what retention lets go is no event
	ResumeScheduled            EventType = "resume_scheduled"   // the next execution was granted, from a checkpoint
	ResumeStarted              EventType = "resume_started"     // its holder took it
	ResumeCompleted            EventType = "resume_completed"   // its program runs from what was restored
	ResumeFailed               EventType = "resume_failed"
	PreemptionNoticeReceived   EventType = "preemption_notice_received"
	CancellationRequested      EventType = "cancellation_requested"
	SuspensionRequested        EventType = "suspension_requested"
	EventRunnerLost            EventType = "runner_lost"
)

// EventTypes are all of them.
var EventTypes = []EventType{
	CheckpointRequested, CheckpointStarted, CheckpointCreated, CheckpointValidationFailed, CheckpointRevoked, CheckpointDeleted,
	ResumeScheduled, ResumeStarted, ResumeCompleted, ResumeFailed, PreemptionNoticeReceived, CancellationRequested, SuspensionRequested, EventRunnerLost,
}

// Type of a happening that an execution tells.
func (h Happening) Type() EventType {
	switch {
	case h.Tool == nil || h.Tool.Source != ToolCheckpoint:
		return ""
	case h.Tool.State == ToolStarted:
		return CheckpointStarted
	case h.Tool.State == ToolFailed:
		return CheckpointValidationFailed
	}
	return "" // its commit is an event of its own
}

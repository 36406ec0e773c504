package runner

import "log/slog"

// EventType names what happened to an epoch or to its node, as attribute `event` of a line of
// the daemon's log (07§183): what collects logs may rely on it, where the words of a line may change. Append only.
type EventType string

// Event types.
const (
	LeaseAccepted     EventType = "lease_accepted"
	WorkspacePrepared EventType = "workspace_prepared" // inputs, devices and secrets too
	ExecutorStarted   EventType = "executor_started"   // the first program really runs
	UploadCompleted   EventType = "upload_completed"   // outputs are stored, and copied where they should be
	CleanupFailed     EventType = "cleanup_failed"     // never the result's fault
	BadPeer           EventType = "bad_peer"           // a peer offered content that does not match its name
)

// Attr is the type as the attribute of a line.
func (t EventType) Attr() slog.Attr { return slog.String("event", string(t)) }

// happened writes an event of this epoch.
func (a *Attempt) happened(t EventType, text string) {
	a.said().Info(text, t.Attr(), "job", a.task.Authority.Job)
}

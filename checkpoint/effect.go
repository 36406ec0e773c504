package checkpoint

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Messages about effects outside (FYCP/1 §5). Each waits for an answer: an effect is
// performed only after its intent is in the site's log.
const (
	MessageEffectBegin MessageKind = "effect-begin"
	MessageEffectDone  MessageKind = "effect-done"
	MessageEffectAbort MessageKind = "effect-abort"
)

// StatusAlready answers the intent of an effect that is done: it is not performed again.
// The answer has the evidence.
const StatusAlready Status = "already"

// StatusOpen answers the intent of an effect that this epoch has begun before, without an
// outcome: it may have been performed.
const StatusOpen Status = "open"

// EffectNote is what a message says of an effect.
type EffectNote struct {
	Key      string `json:"key"`
	Kind     string `json:"kind,omitempty"`     // of begin
	Idem     string `json:"idem,omitempty"`     // of begin
	Evidence []byte `json:"evidence,omitempty"` // of done
}

// MaxEvidence bounds an evidence, in bytes; the alias spares the helper the whole of package job.
const MaxEvidence = job.MaxEvidence

// CheckEffectKey says why s cannot name an effect, or be its kind or idempotency key, or nil.
func CheckEffectKey(s string) error { return job.CheckEffectKey(s) }

// Effect reports whether the message is about an effect.
func (k MessageKind) Effect() bool {
	return k == MessageEffectBegin || k == MessageEffectDone || k == MessageEffectAbort
}

// checkEffect says why the message is not one about an effect, or nil. Kinds without an
// effect have no note.
func (m Message) checkEffect() error {
	bad := func(format string, args ...any) error {
		return forgeyard.Errorf("parse message", forgeyard.Invalid, format, args...)
	}
	e := m.Effect
	switch {
	case m.Kind.Effect() != (e != nil):
		return bad("kind %q and an effect do not go together", forgeyard.Clip(string(m.Kind), 40))
	case e == nil:
		return nil
	case (m.Kind == MessageEffectBegin) != (e.Idem != ""), m.Kind != MessageEffectBegin && e.Kind != "":
		return bad("kind and idempotency key are for %s, which needs the second", MessageEffectBegin)
	case (m.Kind == MessageEffectDone) != (len(e.Evidence) > 0):
		return bad("evidence is for %s, which needs it", MessageEffectDone)
	case len(e.Evidence) > job.MaxEvidence:
		return forgeyard.Errorf("parse message", forgeyard.Limit, "the evidence has %d bytes, the bound is %d", len(e.Evidence), job.MaxEvidence)
	}
	for _, s := range []string{e.Key, e.Kind, e.Idem} {
		if s == "" && s != e.Key {
			continue
		}
		if err := job.CheckEffectKey(s); err != nil {
			return bad("effect: %v", err)
		}
	}
	return nil
}

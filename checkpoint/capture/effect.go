package capture

import (
	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// EffectMessages reads the messages about effects that wait for an answer. One of another
// attempt or epoch is answered here. Watcher leaves them alone: it may be busy with a
// checkpoint for minutes. alone: there is no Watcher, and what nobody can read is answered
// here too; no message has two who answer it.
func EffectMessages(ctl string, attempt forgeyard.AttemptID, epoch uint64, alone bool) ([]checkpoint.Message, error) {
	all, err := ReadOutbox(ctl)
	if err != nil {
		return nil, err
	}
	var out []checkpoint.Message
	for _, d := range all {
		switch {
		case d.Err != nil && !alone:
		case d.Err != nil:
			err = WriteAnswer(ctl, d.N, checkpoint.Answer{Status: checkpoint.StatusRejected, Reason: d.Err.Error()})
		case !d.Message.Kind.Effect():
		case d.Message.Attempt != attempt || d.Message.Epoch != epoch:
			err = WriteAnswer(ctl, d.N, checkpoint.Answer{Status: checkpoint.StatusStale, Reason: "another attempt or epoch is current"})
		default:
			out = append(out, d.Message)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

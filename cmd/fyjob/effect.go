package main

import (
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
)

// effectWait is how long the site's answer is waited for, unless --wait says otherwise.
const effectWait = 30 * time.Second

// effectBegin writes down that something is about to be done outside. Only exit 0 allows it:
// whatever else happens, nobody will know of it.
func (h *helper) effectBegin(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	kind, idem, wait := flags.String("kind", "", ""), flags.String("idem", "", ""), flags.Duration("wait", effectWait, "")
	const usage = "fyjob effect begin KEY --kind KIND --idem K [--wait 30s]"
	rest, err := parse(flags, args, 1, usage)
	if err != nil {
		return err
	}
	if *idem == "" {
		return exitf(exitUsage, "--idem is needed: what makes this effect the same one when it is begun again; usage: %s", usage)
	}
	return h.effect(checkpoint.MessageEffectBegin, checkpoint.EffectNote{Key: rest[0], Kind: *kind, Idem: *idem}, *wait)
}

func (h *helper) effectDone(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	file, wait := flags.String("evidence", "", ""), flags.Duration("wait", effectWait, "")
	const usage = "fyjob effect done KEY --evidence FILE [--wait 30s]"
	rest, err := parse(flags, args, 1, usage)
	if err != nil {
		return err
	}
	if *file == "" {
		return exitf(exitUsage, "--evidence is needed: without it nothing is known to be done; usage: %s", usage)
	}
	b, err := readEvidence(*file)
	if err != nil {
		return err
	}
	return h.effect(checkpoint.MessageEffectDone, checkpoint.EffectNote{Key: rest[0], Evidence: b}, *wait)
}

func readEvidence(file string) (b []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, exitf(exitUsage, "%v", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err = io.ReadAll(io.LimitReader(f, checkpoint.MaxEvidence+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) == 0:
		return nil, exitf(exitUsage, "%s is empty: it shows nothing", file)
	case len(b) > checkpoint.MaxEvidence:
		return nil, exitf(exitLimit, "%s has more than %d bytes: give a receipt or a digest, not the thing itself", file, checkpoint.MaxEvidence)
	}
	return b, nil
}

func (h *helper) effectAbort(args []string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	wait := flags.Duration("wait", effectWait, "")
	rest, err := parse(flags, args, 1, "fyjob effect abort KEY [--wait 30s]")
	if err != nil {
		return err
	}
	return h.effect(checkpoint.MessageEffectAbort, checkpoint.EffectNote{Key: rest[0]}, *wait)
}

// effect asks, and waits for the answer.
func (h *helper) effect(kind checkpoint.MessageKind, e checkpoint.EffectNote, wait time.Duration) error {
	for _, s := range []string{e.Key, e.Kind, e.Idem} {
		if s == "" && s != e.Key {
			continue
		}
		if err := checkpoint.CheckEffectKey(s); err != nil {
			return exitf(exitUsage, "%v", err)
		}
	}
	n, err := h.post(checkpoint.Message{Kind: kind, Effect: &e})
	if err != nil {
		return err
	}
	a, ok, err := h.answered(n, wait)
	switch {
	case err != nil:
		return err
	case !ok:
		// Taken back, so that what the program was told not to do is not written down later. A
		// runner that has it already writes it down, and takes who asks again for the same. One
		// that has let go of it has answered.
		err := os.Remove(filepath.Join(h.ctl, checkpoint.OutboxName, checkpoint.MessageName(n)))
		if errors.Is(err, fs.ErrNotExist) {
			if a, ok, err = h.answered(n, 0); err == nil && ok {
				return h.told(e, a)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return exitf(exitStaged, "no answer within %v", wait)
	}
	return h.told(e, a)
}

// told is the exit of a command whose effect was answered.
func (h *helper) told(e checkpoint.EffectNote, a checkpoint.Answer) error {
	switch {
	case a.Status == checkpoint.StatusCommitted:
		return nil
	case a.Status == checkpoint.StatusAlready:
		if _, err := h.out.Write(a.Evidence); err != nil {
			return err
		}
		return exitf(exitAlready, "effect %s is done already", e.Key)
	case a.Status == checkpoint.StatusOpen:
		return exitf(exitOpen, "effect %s was begun before in this epoch and has no outcome: it may have been performed; say fyjob effect done or fyjob effect abort first", e.Key)
	}
	return h.refused(a)
}

// answered looks for the answer to message n until the time is over.
func (h *helper) answered(n int, within time.Duration) (a checkpoint.Answer, ok bool, err error) {
	p := filepath.Join(h.ctl, checkpoint.InboxName, checkpoint.MessageName(n))
	started := time.Now()
	for wait := pollFirst; ; wait = min(wait*3/2, pollMost) {
		b, err := os.ReadFile(p)
		if err == nil {
			a, err := checkpoint.ParseAnswer(b)
			return a, err == nil, err
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return a, false, err
		}
		if time.Since(started) >= within {
			return a, false, nil
		}
		time.Sleep(wait)
	}
}

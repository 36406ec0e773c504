package checkpoint

import (
	"slices"
	"strings"

	"github.com/forgeyard/forgeyard-node"
)

// Current is what the site holds to be true of the execution that seals.
type Current struct {
	Attempt forgeyard.AttemptID
	Epoch   uint64
	LastSeq int // highest slot that was answered in this epoch; 0: none
	// MayBeOpen says whether an effect may be without an outcome in a checkpoint; nil: none may.
	MayBeOpen func(effect string) bool
	// Open are effects of this epoch that have no outcome and must have one, by the site's own
	// ledger: a program that leaves them out of its marker is not believed.
	Open []string
}

// unsettled names an effect that keeps the checkpoint from being taken, or nothing.
func (c Current) unsettled(m Marker) string {
	if len(c.Open) > 0 {
		return c.Open[0]
	}
	for _, e := range m.EffectsOpen {
		if c.MayBeOpen == nil || !c.MayBeOpen(e) {
			return e
		}
	}
	return ""
}

// EntryKind is what a directory entry is.
type EntryKind uint8

// Entry kinds. The zero value is nothing that may be in a checkpoint.
const (
	Irregular EntryKind = iota // device, socket, pipe
	Regular
	Directory
	Link // symbolic
)

// Entry is one thing that is really in the directory.
type Entry struct {
	Path   string
	Kind   EntryKind
	Size   int64
	Links  uint64           // hard links of a regular file; 0: the platform does not say
	BLAKE3 forgeyard.Digest // of what was stored; zero: not read yet
}

// CheckMarker compares a marker with the truth: the current execution, the contract,
// and what is really in slot `slot`. listing is everything but the marker itself.
//
// Before the bytes were read, the best verdict is Unknown with CodeUnhashed: all but
// the digests hold. It is asked again with the digests of what was stored.
func CheckMarker(m Marker, slot int, cur Current, c Contract, listing []Entry) Finding {
	if f := checkExecution(m, slot, cur, c); !f.OK() {
		return f
	}
	if f := checkLimits(m, c); !f.OK() {
		return f
	}
	return checkFiles(m, listing)
}

func checkExecution(m Marker, slot int, cur Current, c Contract) Finding {
	if err := m.validate(); err != nil {
		return found(Incomplete, CodeBadMarker, "%v", err)
	}
	switch {
	case cur.Attempt == "" || cur.Epoch == 0:
		return found(Unknown, CodeTarget, "the current attempt and epoch are not known")
	case m.Attempt != cur.Attempt:
		return found(Incompatible, CodeAttempt, "the marker is of attempt %s, %s is current", forgeyard.Short(m.Attempt), forgeyard.Short(cur.Attempt))
	case m.Epoch != cur.Epoch:
		return found(Incompatible, CodeStaleEpoch, "the marker is of epoch %d, %d is current", m.Epoch, cur.Epoch)
	case m.Seq != slot:
		return found(Incompatible, CodeWrongSlot, "the marker is of slot %d, it lies in %d", m.Seq, slot)
	case m.Seq <= cur.LastSeq:
		return found(Incompatible, CodeSlot, "slot %d, and slot %d was answered already in this epoch", m.Seq, cur.LastSeq)
	case !c.Resumable() || m.Mode != c.Mode:
		return found(Incompatible, CodeMode, "mode %q, the contract's is %q", m.Mode, c.Mode)
	case !c.takes(m.Format):
		return found(Incompatible, CodeFormat, "format %q, the job declares %q", m.Format, c.Format)
	case m.Consistency == Application && !m.Quiesced:
		return found(Incompatible, CodeConsistency, "application consistency needs quiesced")
	case m.Consistency == Framework && m.Mode != ModeFramework:
		return found(Incompatible, CodeConsistency, "framework consistency is earned by a cursor, not by mode %q", m.Mode)
	case m.Mode == ModeFramework && m.Consistency != Framework:
		return found(Incompatible, CodeConsistency, "%s consistency is not earned by a cursor", m.Consistency)
	case !m.Consistency.Meets(c.Minimum):
		return found(Incompatible, CodeConsistency, "%s is weaker than %s", m.Consistency, c.Minimum)
	case cur.unsettled(m) != "":
		return found(Incompatible, CodeEffects, "effect %q has no outcome yet", forgeyard.Clip(cur.unsettled(m), 80))
	case m.ParentSeq != 0:
		return found(Incompatible, CodeParent, "it builds on slot %d; only full checkpoints are taken", m.ParentSeq)
	}
	return Finding{Verdict: Valid}
}

func checkLimits(m Marker, c Contract) Finding {
	switch {
	case len(m.Files) == 0:
		return found(Incomplete, CodeEmpty, "it holds no file")
	case len(m.Files) > c.MaxFiles:
		return found(Incompatible, CodeFiles, "%d files, the bound is %d", len(m.Files), c.MaxFiles)
	case m.Bytes() > c.MaxBytes:
		return found(Incompatible, CodeBytes, "%d bytes, the bound is %d", m.Bytes(), c.MaxBytes)
	}
	return Finding{Verdict: Valid}
}

// checkFiles compares what was promised with what is there. What must not be there
// counts before what is missing, so that the reason does not depend on order.
func checkFiles(m Marker, listing []Entry) Finding {
	want := make(map[string]File, len(m.Files))
	for _, f := range m.Files {
		want[f.Path] = f
	}
	listing = slices.Clone(listing)
	slices.SortFunc(listing, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for _, e := range listing {
		if f := checkKind(e); !f.OK() {
			return f
		}
		if _, ok := want[e.Path]; !ok && e.Kind == Regular {
			return found(Incompatible, CodeExtra, "%q is not in the marker", forgeyard.Clip(e.Path, 80))
		}
	}
	unhashed := ""
	for _, e := range listing {
		f, ok := want[e.Path]
		if !ok || e.Kind != Regular {
			continue
		}
		delete(want, e.Path)
		switch {
		case e.Size != f.Size:
			return found(Corrupt, CodeSize, "%q has %d bytes, the marker says %d", forgeyard.Clip(e.Path, 80), e.Size, f.Size)
		case e.BLAKE3.IsZero():
			unhashed = e.Path
		case e.BLAKE3 != f.BLAKE3:
			return found(Corrupt, CodeDigest, "%q is %s, the marker says %s", forgeyard.Clip(e.Path, 80), e.BLAKE3.Short(), f.BLAKE3.Short())
		}
	}
	for _, f := range m.Files { // in order, not the map's
		if _, gone := want[f.Path]; gone {
			return found(Incomplete, CodeMissing, "%q is in the marker and not there", forgeyard.Clip(f.Path, 80))
		}
	}
	if unhashed != "" {
		return found(Unknown, CodeUnhashed, "%q was not read yet", forgeyard.Clip(unhashed, 80))
	}
	return Finding{Verdict: Valid}
}

// checkKind refuses all but plain files and directories.
func checkKind(e Entry) Finding {
	name := forgeyard.Clip(e.Path, 80)
	if why := badPath(e.Path); why != "" {
		return found(Incompatible, CodeIrregular, "path %q %s", name, why)
	}
	switch {
	case e.Kind == Link:
		return found(Incompatible, CodeIrregular, "%q is a symbolic link", name)
	case e.Kind == Regular && e.Links > 1:
		return found(Incompatible, CodeIrregular, "%q has %d hard links", name, e.Links)
	case e.Kind != Regular && e.Kind != Directory:
		return found(Incompatible, CodeIrregular, "%q is no file or directory", name)
	}
	return Finding{Verdict: Valid}
}

package capture

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/cursor"
	"github.com/forgeyard/forgeyard-node/job"
)

// Cursor is what a list of tests has come to in one epoch, with what it goes on from.
type Cursor struct {
	Plan    cursor.Plan
	Binding cursor.Binding
	Records []cursor.Record // of all epochs that count
	State   cursor.State
	Dropped string // why what was restored does not count; empty: it does, or there was nothing
}

// ReadCursor reads the files of mode framework in a checkpoint directory, and puts what lies
// in restored, the directory of a restored payload, before it. ok is false while there is no
// plan. A finding is the workload's fault, and may be mended by its next write.
func ReadCursor(dir, restored string, e Expect) (c Cursor, ok bool, err error) {
	c, err = readCursor(dir, e.Contract.Isolation)
	if errors.Is(err, fs.ErrNotExist) {
		return Cursor{}, false, nil
	}
	if err != nil {
		return Cursor{}, false, badCursor(err)
	}
	if c.Binding.Isolation != e.Contract.Isolation {
		return Cursor{}, false, refuse(checkpoint.Incompatible, cursor.CodeIsolation, "the results are bound to isolation "+string(c.Binding.Isolation)+", the contract has "+string(e.Contract.Isolation))
	}
	epoch := e.Authority.Fence.Epoch
	var before []cursor.Record
	if restored != "" {
		old, err := readCursor(restored, e.Contract.Isolation)
		if err != nil {
			return Cursor{}, false, forgeyard.E("restored cursor", forgeyard.Other, err)
		}
		if f := c.Binding.Carries(old.Binding); f.OK() {
			before = old.Records
		} else {
			c.Dropped = f.Reason()
		}
	}
	if c.Records, err = cursor.Merge(before, c.Records, epoch); err == nil {
		c.State, err = cursor.Fold(c.Plan, c.Records, c.Binding.Isolation, epoch)
	}
	if err != nil {
		return Cursor{}, false, badCursor(err)
	}
	return c, true, nil
}

func badCursor(err error) error {
	if _, ok := checkpoint.FindingOf(err); ok {
		return err
	}
	if k := forgeyard.KindOf(err); k != forgeyard.Invalid && k != forgeyard.Corrupt && k != forgeyard.Limit {
		return err
	}
	return refuse(checkpoint.Corrupt, checkpoint.CodeBadMarker, err.Error())
}

// readCursor reads the three files as they are. A cursor that is not there yet has no records;
// a binding that is not there binds the list alone.
func readCursor(dir string, i job.Isolation) (c Cursor, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return c, err
	}
	defer root.Close()
	b, err := readBounded(root, checkpoint.PlanName, cursor.MaxBytes)
	if err != nil {
		return c, err
	}
	if c.Plan, err = cursor.ParsePlan(b); err != nil {
		return c, err
	}
	b, err = readBounded(root, checkpoint.BindingName, checkpoint.MaxControlBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Binding = cursor.Bind(c.Plan, forgeyard.Digest{}, i)
	case err != nil:
		return c, err
	default:
		if c.Binding, err = cursor.ParseBinding(b); err != nil {
			return c, err
		}
	}
	if c.Binding.List != c.Plan.Digest() {
		return c, refuse(checkpoint.Incompatible, cursor.CodeList, "the binding names another list than the plan")
	}
	b, err = readBounded(root, checkpoint.CursorName, cursor.MaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	l, err := cursor.Decode(b)
	c.Records = l.Records
	return c, err
}

// RestoredBinding is what a restored cursor's results belong to.
func RestoredBinding(dir string) (cursor.Binding, error) {
	c, err := readCursor(dir, "")
	if err != nil {
		return cursor.Binding{}, forgeyard.E("restored cursor", forgeyard.Corrupt, err)
	}
	return c.Binding, nil
}

// IngestCursor takes a cursor into the store: a whole payload of the same three files, under
// the slot after LastSeq. Nothing of it is read from the directory again, so that a program
// may go on writing.
func IngestCursor(ctx context.Context, store cas.Store, c Cursor, e Expect) (Ingested, error) {
	records, err := cursor.Encode(c.Records)
	if err != nil {
		return Ingested{}, badCursor(err)
	}
	in, err := newIntake(ctx, store, newNeedles(e.Secrets), e, e.LastSeq+1)
	if err != nil {
		return Ingested{}, err
	}
	return in.done(in.cursor(c, records))
}

func (in *intake) cursor(c Cursor, records []byte) (Ingested, error) {
	e := in.expect
	m := checkpoint.Marker{
		V: checkpoint.MarkerVersion, Attempt: e.Authority.Attempt, Epoch: e.Authority.Fence.Epoch, Seq: e.LastSeq + 1,
		Mode: checkpoint.ModeFramework, Consistency: checkpoint.Framework, Format: e.Contract.Format, Progress: c.State.Progress(),
		EffectsOpen: e.Open,
	}
	refs := map[string]kept{}
	var listing []checkpoint.Entry
	for _, f := range []struct {
		name string
		b    []byte
	}{{checkpoint.BindingName, c.Binding.Encode()}, {checkpoint.CursorName, records}, {checkpoint.PlanName, c.Plan.Encode()}} {
		if in.needles.in(f.b) {
			return Ingested{}, secretFinding().Err("ingest")
		}
		k, err := in.small(f.b)
		if err != nil {
			return Ingested{}, err
		}
		ref := k.whole
		refs[f.name] = k
		m.Files = append(m.Files, checkpoint.File{Path: f.name, Size: ref.Size, BLAKE3: ref.Digest, Mode: 0o644})
		listing = append(listing, checkpoint.Entry{Path: f.name, Kind: checkpoint.Regular, Size: ref.Size, Links: 1, BLAKE3: ref.Digest})
	}
	if f := checkpoint.CheckMarker(m, m.Seq, e.current(), e.Contract, listing); !f.OK() {
		return Ingested{}, f.Err("ingest")
	}
	return in.finish(m, nil, refs)
}

func (in *intake) small(b []byte) (k kept, err error) {
	if in.box != nil {
		k.whole, k.sealed, err = in.putSealed(in.ctx, bytes.NewReader(b))
		return k, err
	}
	k.whole, err = in.bytes(b)
	return k, err
}

// WriteAck tells the program up to which record the site has its cursor.
func WriteAck(ctl string, a checkpoint.Ack) error {
	return within(ctl, func(root *os.Root) error { return replace(root, checkpoint.AckName, a.Encode()) })
}

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/forgeyard/forgeyard-node"
	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/tree"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/job/machine"
	"github.com/forgeyard/forgeyard-node/site"
)

// checkpointService shows committed checkpoints, and takes them away.
type checkpointService struct{ n Node }

// kept shows a checkpoint with the job that has it.
func kept(s *site.State, j site.Job, c checkpoint.Commit) *forgeyardv1.Checkpoint {
	v := Checkpoint(c)
	v.JobId, v.By, v.Dropped, v.Sensitivity = string(j.ID), c.By, c.Dropped, string(j.Spec.Resume.Sensitivity)
	if i := slices.IndexFunc(j.History, func(e site.EpochRecord) bool { return e.Epoch == c.Epoch }); i >= 0 {
		v.Runner = memberName(s, j.History[i].Runner)
	}
	if c.Took > 0 {
		v.Took = durationpb.New(c.Took)
	}
	if c.Where != nil {
		v.Where = place(*c.Where)
	}
	return v
}

func place(p machine.Place) *forgeyardv1.Checkpoint_Place {
	v := &forgeyardv1.Checkpoint_Place{Os: p.OS, Arch: p.Arch}
	if m := p.Machine; m != nil {
		v.Kernel, v.Libc, v.Cpu, v.Gpus, v.Tools, v.Devices = m.Kernel, m.Libc, m.CPU, m.GPUs, m.Tools, m.Devices
	}
	return v
}

func (s checkpointService) List(ctx context.Context, r *connect.Request[forgeyardv1.ListCheckpointsRequest]) (*connect.Response[forgeyardv1.ListCheckpointsResponse], error) {
	out := &forgeyardv1.ListCheckpointsResponse{}
	add := func(st *site.State, j site.Job) {
		for _, c := range j.Checkpoints {
			out.Checkpoints = append(out.Checkpoints, kept(st, j, c))
		}
	}
	if r.Msg.JobId != "" {
		j, err := lookUp(ctx, s.n, r.Msg.JobId, findJob)
		if err != nil {
			return nil, err
		}
		add(s.n.Site(), j)
		return connect.NewResponse(out), nil
	}
	st := s.n.Site()
	for _, j := range st.Jobs.All() {
		add(st, j)
	}
	return connect.NewResponse(out), nil
}

// fewestLetters is how much of an identity says which checkpoint is meant.
const fewestLetters = 4

// findCheckpoint finds a checkpoint by its identity or the first letters of it.
func findCheckpoint(s *site.State, word string) (site.Job, checkpoint.Commit, error) {
	w := strings.TrimPrefix(strings.ToLower(strings.TrimSpace(word)), "b3:")
	if len(w) < fewestLetters {
		return site.Job{}, checkpoint.Commit{}, forgeyard.Errorf("checkpoint", forgeyard.Invalid, "%q has %d letters; an identity or at least %d letters of it are needed", forgeyard.Clip(word, 80), len(w), fewestLetters).
			WithHint("list them: forgeyard-node checkpoint list")
	}
	var job site.Job
	var found []checkpoint.Commit
	for _, j := range s.Jobs.All() {
		for _, c := range j.Checkpoints {
			if strings.HasPrefix(c.Manifest.Hex(), w) {
				job, found = j, append(found, c)
			}
		}
	}
	switch len(found) {
	case 0:
		return site.Job{}, checkpoint.Commit{}, forgeyard.Errorf("checkpoint", forgeyard.NotFound, "no job that is known here has a checkpoint %q", forgeyard.Clip(word, 80)).
			WithHint("list them: forgeyard-node checkpoint list")
	case 1:
		return job, found[0], nil
	}
	return site.Job{}, checkpoint.Commit{}, forgeyard.Errorf("checkpoint", forgeyard.Conflict, "%q names %d checkpoints", forgeyard.Clip(word, 80), len(found)).WithHint("give more of its letters")
}

// lookUp finds a checkpoint in a copy of the log that has all that was committed.
func (s checkpointService) lookUp(ctx context.Context, word string) (c checkpoint.Commit, j site.Job, err error) {
	j, err = lookUp(ctx, s.n, word, func(st *site.State, word string) (site.Job, error) {
		var err error
		var of site.Job
		of, c, err = findCheckpoint(st, word)
		return of, err
	})
	return c, j, err
}

// Show says all that binds a checkpoint, and what this node thinks of it.
func (s checkpointService) Show(ctx context.Context, r *connect.Request[forgeyardv1.ShowCheckpointRequest]) (*connect.Response[forgeyardv1.CheckpointDetail], error) {
	c, j, err := s.lookUp(ctx, r.Msg.CheckpointId)
	if err != nil {
		return nil, err
	}
	st := s.n.Site()
	d := &forgeyardv1.CheckpointDetail{Checkpoint: kept(st, j, c)}
	for _, x := range c.Replicas {
		d.Acknowledged = append(d.Acknowledged, memberName(st, x))
	}
	for _, e := range j.History {
		if e.Resumed == c.Manifest {
			d.ResumedBy = append(d.ResumedBy, fmt.Sprintf("epoch %d on %s", e.Epoch, memberName(st, e.Runner)))
		}
		if e.Epoch == c.Epoch {
			d.TakenBy = memberName(st, e.Runner)
		}
	}
	next, ok := j.NextFrom()
	d.Next = ok && next.Manifest == c.Manifest && !j.Status.Terminal()
	d.Holders = s.n.Holders(ctx, c.Payload)
	f := s.judge(ctx, j, c, d)
	d.Verdict, d.Code, d.Detail = f.Verdict.String(), string(f.Code), f.Detail
	return connect.NewResponse(d), nil
}

// judge is the verdict of this node: what the log says of it, whether what binds it fits this
// node and the job, and whether its content is here. The bytes are read when it is restored.
func (s checkpointService) judge(ctx context.Context, j site.Job, c checkpoint.Commit, d *forgeyardv1.CheckpointDetail) checkpoint.Finding {
	_, _, skipped := checkpoint.Select([]checkpoint.Commit{c})
	m, err := s.manifest(ctx, c.Manifest)
	if err != nil {
		d.ManifestState = err.Error()
	} else {
		d.Version, d.Spec, d.Contract, d.Marker, d.Files = int32(m.Version), m.Spec.String(), m.Contract.String(), m.Marker.String(), int32(m.Files)
		d.Format = m.Format.String()
		if !m.Parent.IsZero() {
			d.Parent = m.Parent.String()
		}
	}
	switch {
	case len(skipped) > 0:
		return skipped[0].Finding
	case err != nil:
		return checkpoint.Finding{Verdict: checkpoint.Unknown, Code: checkpoint.CodeManifest, Detail: "its manifest cannot be read here: " + err.Error()}
	}
	contract, err := checkpoint.NewContract(j.Spec.Resume, checkpoint.Limits{})
	if err != nil {
		return checkpoint.Finding{Verdict: checkpoint.Unknown, Code: checkpoint.CodeContract, Detail: err.Error()}
	}
	me, _ := s.n.Identity()
	here, _ := s.n.Site().Members.Get(me)
	facts := here.Caps.MachineFor(j.Spec)
	f := checkpoint.Usable(m, checkpoint.Target{Job: j.ID, Attempt: c.Attempt, Spec: j.SpecID, Contract: contract, OS: here.Caps.OS, Arch: here.Caps.Arch, Machine: facts})
	if !f.OK() {
		return f
	}
	return s.whole(ctx, m)
}

func (s checkpointService) manifest(ctx context.Context, id forgeyard.Digest) (checkpoint.Manifest, error) {
	if !s.n.Store().Has(ctx, id) {
		if err := s.n.Bring(ctx, cas.Ref{Digest: id}, false); err != nil {
			return checkpoint.Manifest{}, err
		}
	}
	return capture.LoadManifest(ctx, s.n.Store(), id)
}

// payloadLimits bound the walk of a payload: a file that is kept in pieces is many files there,
// and all of them have no more bytes than its manifest says.
func payloadLimits(m checkpoint.Manifest) tree.Limits {
	return tree.Limits{MaxFiles: math.MaxInt32, MaxBytes: m.Stored() + 1}
}

// whole says whether all of a payload is in this node's store.
func (s checkpointService) whole(ctx context.Context, m checkpoint.Manifest) checkpoint.Finding {
	store := s.n.Store()
	if !store.Has(ctx, m.Payload) {
		return checkpoint.Finding{Verdict: checkpoint.Unknown, Code: checkpoint.CodeUnhashed, Detail: "its payload is on other nodes; it fits this one"}
	}
	missing, parts := 0, 0
	err := tree.Walk(ctx, cas.Ref{Digest: m.Payload}, tree.FromStore(store), payloadLimits(m), func(_ string, e cas.Entry) error {
		if e.Kind != cas.File {
			return nil
		}
		if parts++; !store.Has(ctx, e.Digest) {
			missing++
		}
		return nil
	})
	switch kind := forgeyard.KindOf(err); {
	case err == nil && missing > 0:
		return checkpoint.Finding{Verdict: checkpoint.Incomplete, Code: checkpoint.CodeMissing, Detail: fmt.Sprintf("%d of its %d parts are not on this node", missing, parts)}
	case err == nil:
	case kind == forgeyard.Corrupt || kind == forgeyard.Invalid:
		return checkpoint.Finding{Verdict: checkpoint.Corrupt, Code: checkpoint.CodeDigest, Detail: err.Error()}
	case kind == forgeyard.NotFound:
		return checkpoint.Finding{Verdict: checkpoint.Incomplete, Code: checkpoint.CodeMissing, Detail: err.Error()}
	default:
		return checkpoint.Finding{Verdict: checkpoint.Unknown, Code: checkpoint.CodeUnhashed, Detail: "it could not be looked through: " + err.Error()}
	}
	return checkpoint.Finding{Verdict: checkpoint.Valid}
}

// spoilt reads what of a payload lies in this node's store. Corrupt: some of it is not what it was.
func (s checkpointService) spoilt(ctx context.Context, m checkpoint.Manifest) error {
	store := s.n.Store()
	if !store.Has(ctx, m.Payload) {
		return nil
	}
	return tree.Walk(ctx, cas.Ref{Digest: m.Payload}, tree.FromStore(store), payloadLimits(m), func(_ string, e cas.Entry) (err error) {
		if e.Kind != cas.File || !store.Has(ctx, e.Digest) {
			return nil
		}
		o, err := store.Open(ctx, e.Digest)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, o.Close()) }()
		_, err = io.Copy(io.Discard, o)
		return err
	})
}

// Doctor says what is wrong with checkpoints: what the log shows, and what lies in this node's
// store.
func (s checkpointService) Doctor(ctx context.Context, _ *connect.Request[forgeyardv1.CheckpointDoctorRequest]) (*connect.Response[forgeyardv1.CheckpointDoctorResponse], error) {
	if _, err := s.n.Current(ctx); err != nil {
		return nil, forgeyard.Errorf("checkpoint doctor", forgeyard.Unavailable, "this node's copy of the log may be behind, and would call good ones orphans: %v", err).WithHint("ask another node, or look at this one: forgeyard-node doctor")
	}
	st, now := s.n.Site(), forgeyard.WallOf(s.n.Wall())
	faults := st.CheckpointFaults(now)
	pins, err := s.n.Store().Pins(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		if f, ok := orphan(st, p); ok {
			faults = append(faults, f)
		}
	}
	faults = append(faults, s.chains(ctx, st)...)
	out := &forgeyardv1.CheckpointDoctorResponse{}
	health, why := s.health(ctx, st, faults)
	out.Health, out.HealthReasons = string(health), why
	for _, f := range faults {
		v := &forgeyardv1.CheckpointFault{What: f.What, JobId: string(f.Job), Detail: f.Detail, Fix: f.Fix}
		if !f.Checkpoint.IsZero() {
			v.CheckpointId = f.Checkpoint.String()
		}
		out.Faults = append(out.Faults, v)
	}
	return connect.NewResponse(out), nil
}

// orphan is what this node keeps as a checkpoint that the log does not have (CK-281). What is
// on its way to its commit is a while, too: of an attempt that runs nothing is said.
func orphan(st *site.State, p cas.Pin) (site.CheckpointFault, bool) {
	id, hex, ok := strings.Cut(strings.TrimPrefix(p.Owner, "job/"), "/checkpoint/")
	if !ok || !strings.HasPrefix(p.Owner, "job/") || len(p.Trees) == 0 {
		return site.CheckpointFault{}, false
	}
	j, known := st.Jobs.Get(forgeyard.JobID(id))
	if known && (j.Lease.Live() || slices.ContainsFunc(j.Checkpoints, func(c checkpoint.Commit) bool { return strings.HasPrefix(c.Manifest.Hex(), hex) })) {
		return site.CheckpointFault{}, false
	}
	return site.CheckpointFault{
		What: site.FaultOrphan, Job: forgeyard.JobID(id), Detail: "this node keeps the payload of " + hex + ", which was never committed or belongs to an attempt that is over",
		Fix: "nothing resumes from it, and it goes with the next look at what is kept here, within minutes; if it stays: forgeyard-node doctor",
	}, true
}

// chains are those of which a part is missing (CK-282), as far as their manifests are here.
func (s checkpointService) chains(ctx context.Context, st *site.State) []site.CheckpointFault {
	var out []site.CheckpointFault
	for id := range st.Open.All() {
		j, _ := st.Jobs.Get(id)
		for _, c := range j.Checkpoints {
			if c.State != checkpoint.Good || !s.n.Store().Has(ctx, c.Manifest) {
				continue
			}
			m, err := capture.LoadManifest(ctx, s.n.Store(), c.Manifest)
			why := ""
			if err != nil {
				why = err.Error()
			} else if p, ok := j.CheckpointOf(m.Parent); !m.Parent.IsZero() && (!ok || p.State != checkpoint.Good) {
				why = "it builds on " + m.Parent.Short() + ", which the job does not have, or not any more"
			}
			if why != "" {
				out = append(out, site.CheckpointFault{What: site.FaultChain, Job: j.ID, Checkpoint: c.Manifest, Detail: why,
					Fix: fmt.Sprintf("take it out of use: forgeyard-node checkpoint revoke %s --reason 'invalid chain'", c.Manifest.Short())})
			}
		}
	}
	return out
}

func (s checkpointService) Revoke(ctx context.Context, r *connect.Request[forgeyardv1.RevokeCheckpointRequest]) (*connect.Response[forgeyardv1.RevokeCheckpointResponse], error) {
	m := r.Msg
	b := site.CheckpointRevoke{Epoch: m.Epoch, Reason: forgeyard.Clip(strings.TrimSpace(m.Reason), 200)}
	if b.Reason == "" {
		return nil, forgeyard.Errorf("checkpoint revoke", forgeyard.Invalid, "the reason is empty").WithHint("say why: it stands in the site's events")
	}
	if m.CheckpointId != "" {
		c, j, err := s.lookUp(ctx, m.CheckpointId)
		if err != nil {
			return nil, err
		}
		b.Job, b.Checkpoint = j.ID, c.Manifest
	}
	if m.Runner != "" {
		of, err := findMember(s.n.Site(), m.Runner)
		if err != nil {
			return nil, err
		}
		b.Runner = of.Runner
	}
	if m.JobId != "" {
		j, err := lookUp(ctx, s.n, m.JobId, findJob)
		if err != nil {
			return nil, err
		}
		b.Job = j.ID
	}
	reply, err := propose(ctx, s.n, b)
	if err != nil {
		return nil, err
	}
	done, err := site.Value[site.CheckpointRevoked](reply)
	if err != nil {
		return nil, err
	}
	out := &forgeyardv1.RevokeCheckpointResponse{Revoked: int32(done.Revoked)}
	for _, id := range done.Running {
		out.AskedBack = append(out.AskedBack, string(id))
	}
	return connect.NewResponse(out), nil
}

func (s checkpointService) Delete(ctx context.Context, r *connect.Request[forgeyardv1.DeleteCheckpointRequest]) (*connect.Response[forgeyardv1.DeleteCheckpointResponse], error) {
	c, j, err := s.lookUp(ctx, r.Msg.CheckpointId)
	if err != nil {
		return nil, err
	}
	if _, err := propose(ctx, s.n, site.CheckpointLetGo{Job: j.ID, Checkpoint: c.Manifest, Force: r.Msg.Force}); err != nil {
		return nil, err
	}
	st := s.n.Site()
	j, _ = st.Jobs.Get(j.ID)
	if now, ok := j.CheckpointOf(c.Manifest); ok {
		c = now
	}
	return connect.NewResponse(&forgeyardv1.DeleteCheckpointResponse{Checkpoint: kept(st, j, c)}), nil
}

func (s checkpointService) Open(ctx context.Context, r *connect.Request[forgeyardv1.OpenCheckpointRequest]) (*connect.Response[forgeyardv1.OpenCheckpointResponse], error) {
	c, j, err := s.lookUp(ctx, r.Msg.CheckpointId)
	if err != nil {
		return nil, err
	}
	marker, key, err := s.key(ctx, c)
	if err != nil {
		return nil, err
	}
	defer clear(key) // the answer has its own bytes
	reply, err := propose(ctx, s.n, site.CheckpointOpen{Job: j.ID, Checkpoint: c.Manifest, Reason: forgeyard.Clip(strings.TrimSpace(r.Msg.Reason), 200)})
	if err != nil {
		return nil, err
	}
	done, err := site.Value[site.CheckpointOpened](reply)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&forgeyardv1.OpenCheckpointResponse{Payload: done.Payload.String(), Marker: marker, Key: bytes.Clone(key)}), nil
}

// key opens a restricted checkpoint's key, if this node may: it gives the key away only once it is
// written down who reads it, and why.
func (s checkpointService) key(ctx context.Context, c checkpoint.Commit) (marker string, key []byte, err error) {
	if len(c.For) == 0 || c.Dropped {
		return "", nil, nil
	}
	me, _ := s.n.Identity()
	if !c.OpenTo(me) {
		var names []string
		for _, r := range c.For {
			names = append(names, memberName(s.n.Site(), r))
		}
		return "", nil, forgeyard.Errorf("checkpoint fetch", forgeyard.Denied, "%s is restricted, and this node is not among those that it is sealed for", c.Manifest.Short()).
			WithHint("ask one of them: %s", strings.Join(names, ", "))
	}
	m, err := s.manifest(ctx, c.Manifest)
	if err != nil {
		return "", nil, err
	}
	if err := s.n.Bring(ctx, cas.Ref{Digest: c.Payload}, true); err != nil {
		return "", nil, err
	}
	if err := s.n.Bring(ctx, cas.Ref{Digest: m.Marker}, false); err != nil {
		return "", nil, err
	}
	sealed, err := capture.SealedKey(ctx, s.n.Store(), m)
	if err != nil {
		return "", nil, err
	}
	key, err = s.n.Unseal(sealed)
	return m.Marker.String(), key, err
}

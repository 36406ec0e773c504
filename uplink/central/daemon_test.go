package central

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	libpeer "github.com/libp2p/go-libp2p/core/peer"

	"github.com/forgeyard/forgeyard-node"
	v1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
	"github.com/forgeyard/forgeyard-node/api/forgeyard/v1/forgeyardv1connect"
	"github.com/forgeyard/forgeyard-node/api/wire"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/cas/disk"
	"github.com/forgeyard/forgeyard-node/cas/peer"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/mesh"
	"github.com/forgeyard/forgeyard-node/site"
	"github.com/forgeyard/forgeyard-node/uplink"
)

func TestMain(m *testing.M) {
	peer.RegisterHasher()
	os.Exit(m.Run())
}

// running is a daemon in this process.
type running struct {
	*Daemon
	t       *testing.T
	control forgeyardv1connect.CentralServiceClient
	stop    func()
}

func startDaemon(t *testing.T, dir string) *running {
	t.Helper()
	d, err := Open(Config{DataDir: dir, Listen: "127.0.0.1:0", Name: "hq"})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("it did not start: %v", err)
	}
	socket := d.Socket()
	r := &running{Daemon: d, t: t}
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			must(t, <-done)
			must(t, d.Close())
		}
	}
	t.Cleanup(r.stop)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var n net.Dialer
		return n.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	r.control = forgeyardv1connect.NewCentralServiceClient(&http.Client{Transport: tr}, "http://central", connect.WithInterceptors(wire.Interceptor{}))
	return r
}

func (r *running) ticket() string {
	r.t.Helper()
	out, err := r.control.CreateTicket(r.t.Context(), connect.NewRequest(&v1.CreateTicketRequest{}))
	must(r.t, err)
	return out.Msg.Ticket
}

// member is one node of a site, as the daemon meets it.
type member struct {
	*mesh.Mesh
	id    forgeyard.SiteID
	key   mesh.Secret
	pub   ed25519.PublicKey
	store *disk.Store
	exch  *peer.Exchange
}

func newMember(t *testing.T, id forgeyard.SiteID) *member { return newMemberOver(t, id, false) }

func newMemberOver(t *testing.T, id forgeyard.SiteID, streamsOnly bool) *member {
	t.Helper()
	m := &member{id: id}
	var err error
	m.key, m.pub, err = mesh.NewSiteKey()
	must(t, err)
	ident, err := mesh.NewIdentity()
	must(t, err)
	cred, err := mesh.IssueCredential(m.key, mesh.Claims{Site: id, Runner: testRunner, Peer: ident.PeerID(), Roles: []string{mesh.RoleVoter}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	must(t, err)
	m.Mesh, err = mesh.New(mesh.Config{Identity: ident, SiteID: id, SiteName: "plant", SitePublicKey: m.pub, Credential: cred, Listen: "127.0.0.1:0", StreamsOnly: streamsOnly})
	must(t, err)
	t.Cleanup(func() { must(t, m.Mesh.Close()) })
	m.store, err = disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "cas"), NoSync: true})
	must(t, err)
	t.Cleanup(func() { must(t, m.store.Close()) })
	m.exch, err = peer.New(peer.Config{Host: m.HostFor(mesh.ClassMember, mesh.ClassUplink), Store: m.store})
	must(t, err)
	t.Cleanup(func() { must(t, m.exch.Close()) })
	return m
}

func (m *member) applicant() uplink.Applicant {
	return uplink.Applicant{Site: m.id, Name: "plant", PublicKey: m.pub, Key: m.key, First: 1}
}

func (m *member) holders() []string { return uplink.Holder(m.PeerID().String(), m.Addrs()) }

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for what no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen in 30 s: %s", what)
		}
	}
}

// TestStrangersMayOnlyEnrol: without a ticket nobody is heard; with one, a site that
// is not enrolled may enrol and do nothing else.
func TestStrangersMayOnlyEnrol(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	m := newMember(t, testSiteID)
	id, err := libpeer.Decode(d.PeerID())
	must(t, err)
	m.Pin(id, mesh.ClassUplink)
	must(t, m.AddAddrs(id, d.Addrs()))
	_, err = m.Dial(within(t), id, uplink.ProtoEnrol)
	wantKind(t, err, forgeyard.Denied)

	ticket := d.ticket()
	c, err := m.Dial(within(t), id, uplink.ProtoEnrol)
	must(t, err)
	must(t, c.Close())
	_, err = m.Dial(within(t), id, uplink.ProtoUplink)
	wantKind(t, err, forgeyard.Denied)
	_, err = uplink.NewClient(m.Mesh, d.PeerID()).Sync(within(t), connect.NewRequest(&v1.SyncRequest{SiteId: string(testSiteID), First: 1}))
	wantKind(t, err, forgeyard.Denied)
	ref, err := d.content.Put(t.Context(), strings.NewReader("not for strangers"), cas.PutOptions{})
	must(t, err)
	if err := m.exch.Fetch(within(t), ref, []string{d.PeerID()}); err == nil {
		t.Error("a stranger got an object")
	}

	// The proof is of the site's key: a ticket alone is not enough to name any site.
	other := newMember(t, "01JD0000000000000000000099")
	forged := other.applicant()
	forged.Site = testSiteID
	_, err = uplink.Connect(within(t), other.Mesh, forged, ticket)
	wantKind(t, err, forgeyard.Denied)

	connected, err := uplink.Connect(within(t), m.Mesh, m.applicant(), ticket)
	must(t, err)
	if connected.Central.Peer != d.PeerID() || connected.Central.Name != "hq" || strings.Contains(connected.Central.Ticket, "fyt1_") {
		t.Errorf("%+v", connected.Central)
	}
	if _, err = uplink.Connect(within(t), m.Mesh, m.applicant(), ticket); err != nil {
		t.Errorf("repeating it is safe: %v", err)
	}
	_, err = uplink.Connect(within(t), other.Mesh, other.applicant(), ticket)
	wantKind(t, err, forgeyard.Denied)
	eventually(t, "the site is let in as itself", func() bool {
		_, err := uplink.NewClient(m.Mesh, d.PeerID()).Sync(within(t), connect.NewRequest(&v1.SyncRequest{SiteId: string(testSiteID), First: 1, Incarnation: 1}))
		return err == nil
	})
	_, err = uplink.NewClient(m.Mesh, d.PeerID()).Sync(within(t), connect.NewRequest(&v1.SyncRequest{SiteId: "01JD0000000000000000000099", First: 1}))
	wantKind(t, err, forgeyard.Denied)
}

// TestEnrolOverStreams: where only one connection passes, the visitor must be let go
// before the site can come back over it as itself.
func TestEnrolOverStreams(t *testing.T) {
	d := startDaemon(t, t.TempDir())
	m := newMemberOver(t, testSiteID, true)
	_, err := uplink.Connect(within(t), m.Mesh, m.applicant(), d.ticket())
	must(t, err)
	client := uplink.NewClient(m.Mesh, d.PeerID())
	eventually(t, "the site is let in as itself", func() bool {
		_, err := client.Sync(within(t), connect.NewRequest(&v1.SyncRequest{SiteId: string(testSiteID), First: 1, Incarnation: 1}))
		return err == nil
	})
}

// TestJobThereAndBack: an input goes to the site by digest, the outcome comes back,
// its objects follow, across a restart of the daemon while they were missing.
func TestJobThereAndBack(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir)
	m := newMember(t, testSiteID)
	_, err := uplink.Connect(within(t), m.Mesh, m.applicant(), d.ticket())
	must(t, err)

	input := bytes.Repeat([]byte("input "), 500_000) // of several blocks
	s := d.control.PutObject(within(t))
	for part := range bytesIn(input, uploadPiece) {
		must(t, s.Send(&v1.PutObjectRequest{Upload: "u1", Data: part}))
	}
	put, err := s.CloseAndReceive()
	must(t, err)
	digest, err := forgeyard.ParseDigest(put.Msg.Digest)
	must(t, err)
	if digest != cas.Sum(input) || put.Msg.Manifest == "" {
		t.Fatalf("%+v", put.Msg)
	}
	spec := testSpec(t, "  inputs: [{path: source/a, digest: "+put.Msg.Digest+"}]\n")
	del, err := d.control.Delegate(within(t), connect.NewRequest(&v1.DelegateRequest{Site: "plant", Spec: spec.Canonical(), Title: "t", Upload: "u1"}))
	must(t, err)
	grant := forgeyard.GrantID(del.Msg.GrantId)

	client := uplink.NewClient(m.Mesh, d.PeerID())
	var got *connect.Response[v1.SyncResponse]
	eventually(t, "the delegation", func() bool {
		got, err = client.Sync(within(t), connect.NewRequest(&v1.SyncRequest{SiteId: string(testSiteID), First: 1, Incarnation: 1}))
		return err == nil && len(got.Msg.Delegations) == 1
	})
	dg, err := uplink.DecodeDelegation(got.Msg.Delegations[0])
	must(t, err)
	if dg.Grant.ID != grant || !bytes.Equal(dg.Spec, spec.Canonical()) {
		t.Fatalf("%+v", dg.Grant)
	}
	must(t, m.exch.FetchAny(within(t), digest, []string{d.PeerID()}))

	// The outcome arrives before the node that has the output can be reached.
	out := bytes.Repeat([]byte("output"), 300_000)
	ref := cas.Ref{Digest: cas.Sum(out), Size: int64(len(out))}
	b := cas.NewManifestBuilder()
	_, err = b.Write(out)
	must(t, err)
	rec := ended(1, string(grant), job.Done)
	elsewhere, err := disk.Open(disk.Config{Dir: filepath.Join(t.TempDir(), "cas"), NoSync: true})
	must(t, err)
	ref, err = elsewhere.Put(t.Context(), bytes.NewReader(out), cas.PutOptions{})
	must(t, err)
	must(t, elsewhere.Close())
	rec.Result = &job.Result{Outcome: job.OutcomeDone, Outputs: []job.Output{{Path: "out/image.bin", Digest: ref.Digest, Manifest: ref.Manifest, Size: ref.Size}}}
	req := &v1.SyncRequest{SiteId: string(testSiteID), First: 1, Cursor: 1, Incarnation: 1, Records: [][]byte{cborx.Marshal(rec)}, Holders: m.holders()}
	got, err = client.Sync(within(t), connect.NewRequest(req))
	must(t, err)
	if got.Msg.Acked != 1 || got.Msg.Verdicts[0].Verdict != string(site.Accepted) || len(got.Msg.Want) != 1 || got.Msg.Want[0] != ref.Digest.String() {
		t.Fatalf("%+v", got.Msg)
	}
	show := func() *v1.CentralJob {
		r, err := d.control.ShowJob(within(t), connect.NewRequest(&v1.ShowCentralJobRequest{GrantId: string(grant)}))
		must(t, err)
		return r.Msg
	}
	eventually(t, "a first try that finds nothing", func() bool { return show().ObjectsError != "" })
	d.stop()

	ref2, err := m.store.Put(t.Context(), bytes.NewReader(out), cas.PutOptions{})
	must(t, err)
	if ref2 != ref {
		t.Fatalf("%+v %+v", ref2, ref)
	}
	d = startDaemon(t, dir)
	eventually(t, "the objects", func() bool { return show().ObjectsComplete })
	j := show()
	if j.Status != "done" || j.Outcomes != 1 || j.ObjectsError != "" || j.Outputs[0].Digest != ref.Digest.String() {
		t.Errorf("%+v", j)
	}
	o, err := d.content.Open(t.Context(), ref.Digest)
	must(t, err)
	defer o.Close()
	if b, err := io.ReadAll(o); err != nil || !bytes.Equal(b, out) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	pins, err := d.content.Pins(t.Context())
	must(t, err)
	if len(pins) != 1 || pins[0].Owner != outcomeOwner(grant) {
		t.Errorf("the outcome keeps its objects, the delegation no longer its inputs: %+v", pins)
	}
}

func bytesIn(b []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			k := min(n, len(b))
			if !yield(b[:k]) {
				return
			}
			b = b[k:]
		}
	}
}

// TestControl: what a person asks, and the kinds of what goes wrong.
func TestControl(t *testing.T) {
	dir := t.TempDir()
	d := startDaemon(t, dir)
	ctx := within(t)
	st, err := os.Stat(d.Socket())
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %o", st.Mode().Perm())
	}
	_, err = Open(Config{DataDir: dir, Listen: "127.0.0.1:0"})
	wantKind(t, err, forgeyard.Conflict)
	if !strings.Contains(err.Error(), "in use by process ") {
		t.Errorf("it names who has the folder: %v", err)
	}
	node := t.TempDir()
	must(t, os.Mkdir(filepath.Join(node, "raft"), 0o700))
	_, err = Open(Config{DataDir: node, Listen: "127.0.0.1:0"})
	wantKind(t, err, forgeyard.Conflict)
	_, err = d.control.Delegate(ctx, connect.NewRequest(&v1.DelegateRequest{Site: "nowhere", Spec: testSpec(t, "").Canonical()}))
	wantKind(t, err, forgeyard.NotFound)
	_, err = d.control.ShowJob(ctx, connect.NewRequest(&v1.ShowCentralJobRequest{GrantId: "x"}))
	wantKind(t, err, forgeyard.NotFound)
	_, err = d.control.CancelJob(ctx, connect.NewRequest(&v1.CancelCentralJobRequest{GrantId: "x"}))
	wantKind(t, err, forgeyard.NotFound)
	_, err = d.control.Audit(ctx, connect.NewRequest(&v1.AuditRequest{Limit: -1}))
	wantKind(t, err, forgeyard.Invalid)
	_, err = d.control.CreateTicket(ctx, connect.NewRequest(&v1.CreateTicketRequest{Terms: uplink.TermsTo(testTerms)}))
	must(t, err)
	a, err := d.control.Audit(ctx, connect.NewRequest(&v1.AuditRequest{}))
	must(t, err)
	if n := len(a.Msg.Entries); n != 2 || a.Msg.Entries[0].Kind != "daemon" || a.Msg.Entries[1].Kind != "ticket" {
		t.Errorf("%v", a.Msg)
	}
	secret := d.ticket()
	db, err := os.ReadFile(filepath.Join(dir, "central.db"))
	must(t, err)
	tk, err := uplink.ParseTicket(secret)
	must(t, err)
	if bytes.Contains(db, tk.Secret.Reveal()) || bytes.Contains(db, []byte(secret)) {
		t.Error("the ticket's secret is in the store")
	}
}

package sitecfg

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

const fullNode = `
data_dir: /srv/fy
name: bench-1
listen: 10.0.0.5:7444
gossip: "[fd00::5]:7445"
http: 127.0.0.1:0
advertise: [bench-1.lab:7444]
labels: {bench: a, example.org/rack: "3"}
executors: [sandbox, process]
users: {first: 200000, count: 64}
process: {uid: 990, gid: 991}
limits: {max_jobs: 2, cpu: 1500m, memory: 4GiB, disk: 20GiB, layers: 1GiB, reserve: {cpu: 0.5, memory: 512MiB, disk: 2GiB}}
cas: {limit: 100GiB, reserve: 5GiB, rates: {to_peer: 50MB, to_peers: 100MB, from_peers: 100MB, to_uplink: 1MiB, from_uplink: 2MiB}, deadlines: {peers: 1s, uplink: 30s}}
spool: {limit: 64MiB, per_job: 32MiB}
sandbox: {read_only_binds: [/usr/local/go]}
toolchains: [{name: go, version: "1.26", path: /usr/local/go/bin/go}]
devices:
  - {id: dut-1, kind: serial, path: /dev/serial/by-id/x, labels: {board: rev4}, serial: A1, reset: {send: "reset\n", expect: "login:", timeout: 20s}}
  - {id: dut-2, kind: serial, path: /dev/ttyS1, baud: 9600}
policy: {network: site, site_networks: [10.20.0.0/24, 10.20.9.1, "fd00:20::/48"], diagnostics: plain}
reconnect: {max_backoff: 10s}
shutdown: {grace: 1m}
retention: {finalize: 5m, stale_workspace: 2h, debug_failed: 24h}
log: {level: debug, format: json}
traces: {endpoint: "http://127.0.0.1:4318", sample: 0.25}
`

// TestNodeConfig: RA-354, RA-138, RA-140.
func TestNodeConfig(t *testing.T) {
	n, err := ParseNode("node.yaml", []byte(fullNode))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case n.DataDir != "/srv/fy" || n.Name != "bench-1" || n.Limits.MaxJobs != 2 || n.Limits.CPU != 1500,
		n.Limits.Layers != 1<<30, n.Limits.Reserve != ReserveConfig{500, 512 << 20, 2 << 30},
		n.Labels["example.org/rack"] != "3",
		n.CAS.Rates != RatesConfig{50e6, 100e6, 100e6, 1 << 20, 2 << 20},
		n.CAS.Deadlines != DeadlinesConfig{time.Second, 30 * time.Second},
		!n.Runs("process") || n.Process != ProcessConfig{990, 991} || n.Users != UsersConfig{200000, 64},
		n.Devices[0].Baud != 115200 || n.Devices[0].Reset != ResetConfig{"reset\n", "login:", 20 * time.Second},
		n.Devices[1].Baud != 9600 || n.Devices[1].Reset.Timeout != 30*time.Second,
		!n.Policy.Allows(job.NetworkSite) || n.Policy.Allows(job.NetworkHost) || len(n.Policy.Networks()) != 2,
		fmt.Sprint(n.Policy.Site()) != "[10.20.0.0/24 10.20.9.1/32 fd00:20::/48]",
		n.Policy.Diagnostics != "plain",
		n.Spool != SpoolConfig{64 << 20, 32 << 20},
		n.Traces != TracesConfig{"http://127.0.0.1:4318", .25},
		n.Retention != RetentionConfig{5 * time.Minute, 2 * time.Hour, 24 * time.Hour},
		n.Reconnect.MaxBackoff != 10*time.Second:
		t.Fatalf("%+v", n)
	}
	if err := n.Validate(); err != nil {
		t.Fatal(err)
	}
	empty, err := ParseNode("node.yaml", nil)
	if err != nil || empty.Validate() != nil || empty.Runs("process") || !empty.Runs("sandbox") || empty.Policy.Allows(job.NetworkSite) {
		t.Fatalf("decision 9: the process executor is off unless listed: %v %+v", err, empty)
	}
	if empty.Policy.Diagnostics != "all" {
		t.Errorf("%+v", empty.Policy)
	}
	if empty.Retention != (RetentionConfig{30 * time.Minute, time.Hour, 0}) { // decision 14, RA-286: off
		t.Errorf("%+v", empty.Retention)
	}
}

func TestNodeErrors(t *testing.T) {
	for in, want := range map[string]string{
		"lables: {}":                                        `n.yaml:1:1: unknown key "lables"; allowed: data_dir, name, listen, gossip, http, advertise, labels, executors, users, process, limits, cas, cache_api, spool, sandbox, toolchains, devices, secrets, policy, reconnect, shutdown, retention, raft, log, traces, checkpoints, preemption (did you mean "labels"?)`,
		"listen: 7444":                                      `n.yaml:1:9: listen: 7444 is a number; a string is expected (quote it: "7444")`,
		"listen: host":                                      `n.yaml:1:9: listen: "host" has no port; HOST:PORT is expected`,
		"listen: :70000":                                    `n.yaml:1:9: listen: ":70000" has a port that is not a number below 65536; HOST:PORT is expected`,
		"listen: fd00::5:7444":                              `n.yaml:1:9: listen: "fd00::5:7444" has a host that is no name and no address (IPv6 stands in brackets); HOST:PORT is expected`,
		"http: '[1.2.3.4]:1'":                               `n.yaml:1:7: http: "[1.2.3.4]:1" has a host in brackets that is not an IPv6 address; HOST:PORT is expected`,
		"advertise: [':7444']":                              `n.yaml:1:13: advertise[0]: ":7444" has no host`,
		"advertise: [h:0]":                                  `n.yaml:1:13: advertise[0]: "h:0" has port 0, which nobody can dial`,
		"executors: [docker]":                               `n.yaml:1:13: executors[0]: "docker" is unknown; allowed: sandbox, process`,
		"executors: [sandbox, sandbox]":                     `n.yaml:1:22: executors[1]: "sandbox" is given twice`,
		"process: {gid: 0}":                                 `n.yaml:1:16: process.gid: 0 is root's group; work never runs as root`,
		"users: {count: 9}":                                 `n.yaml:1:16: users.count: stands with users.first only`,
		"users: {first: 10, count: 9}":                      `n.yaml:1:16: users.first: 10 to 18 is not in [1000, 2147483648]`,
		"users: {first: 70000, count: 3}":                   `n.yaml:1:30: users.count: 3 is fewer than limits.max_jobs, which is 4`,
		"limits: {max_jobs: -1}":                            `n.yaml:1:20: limits.max_jobs: -1 is not in [0, 1024]`,
		"limits: {layers: -1}":                              `n.yaml:1:18: limits.layers: "-1" is not a size; allowed: bytes as a number, or with a unit: KiB MiB GiB TiB, kB MB GB TB`,
		"cas: {scrub_every: 1s}":                            `n.yaml:1:20: cas.scrub_every: 1s is not in [1h0m0s, 8760h0m0s]`,
		"cas: {scrub_rate: 1KiB}":                           `n.yaml:1:19: cas.scrub_rate: 1KiB is not in [64KiB, 1048576TiB]`,
		"cas: {deadlines: {peers: 10ms}}":                   `n.yaml:1:26: cas.deadlines.peers: 10ms is not in [250ms, 5m0s]`,
		"cas: {rates: {to_uplink: 1}}":                      `n.yaml:1:26: cas.rates.to_uplink: 1 is not in [256KiB, 1048576TiB]`,
		"spool: {limit: 1KiB}":                              `n.yaml:1:16: spool.limit: 1KiB is not in [1MiB, 1048576TiB]`,
		"policy: {network: all}":                            `n.yaml:1:19: policy.network: "all" is unknown; allowed: none, site, host`,
		"policy: {diagnostics: some}":                       `n.yaml:1:23: policy.diagnostics: "some" is unknown; allowed: none, plain, all (did you mean "none"?)`,
		"sandbox: {read_only_binds: [opt]}":                 `n.yaml:1:29: sandbox.read_only_binds[0]: "opt" is not absolute`,
		"spool: {per_job: 1KiB}":                            `n.yaml:1:18: spool.per_job: 1KiB is not in [1MiB, 1048576TiB]`,
		"retention: {finalize: 0}":                          `n.yaml:1:23: retention.finalize: 0s is not in [1s, 720h0m0s]`,
		"retention: {debug_failed: 1000h}":                  `n.yaml:1:27: retention.debug_failed: 1000h0m0s is not in [0s, 720h0m0s]`,
		"devices: [{id: ../x, kind: serial, path: /dev/x}]": `n.yaml:1:16: devices[0].id: "../x"; allowed: lower-case letters, digits, - and _, a letter first`,
		"devices: [{id: a, kind: serial, path: /dev/x}, {id: a, kind: serial, path: /dev/x}]": "n.yaml:1:53: devices[1].id: \"a\" is given twice\nn.yaml:1:76: devices[1].path: \"/dev/x\" is given twice; one console is one device",
		"devices: [{id: a, kind: serial, path: /dev/x, reset: {timeout: 1h}}]":                `n.yaml:1:64: devices[0].reset.timeout: 1h0m0s is not in [100ms, 10m0s]`,
		"devices: [{id: a, kind: gpio, path: /dev/x}]":                                        `n.yaml:1:25: devices[0].kind: "gpio" is unknown; allowed: serial`,
		"cache_api: {listen: here}":                                                           `n.yaml:1:21: cache_api.listen: "here" has no port; HOST:PORT is expected`,
		"cache_api: {keep: 48h}":                                                              `n.yaml:1:19: cache_api.keep: 48h0m0s is not in [1m0s, 23h0m0s]`,
		"log: {level: loud}\nshutdown: {grace: 30}":                                           "n.yaml:1:14: log.level: \"loud\" is unknown; allowed: debug, info, warn, error\nn.yaml:2:19: shutdown.grace: 30 is a number; a duration such as 30s or 10m is expected",
	} {
		_, err := ParseNode("n.yaml", []byte(in))
		if forgeyard.KindOf(err) != forgeyard.Invalid || err.Error() != want {
			t.Errorf("%s\n got: %v\nwant: %s", in, err, want)
		}
	}
}

func TestEffectiveTellsWhereEachValueCameFrom(t *testing.T) {
	def := DefaultNode()
	def.DataDir = "/var/lib/forgeyard-node"
	env := FromEnviron([]string{"FORGEYARD_LISTEN=:1", "FORGEYARD_LOG_LEVEL=warn", "FORGEYARD_EXECUTORS=sandbox,process", "FORGEYARD_ADDR=x", "FORGEYARD_NAME=", "HOME=/root"})
	n, all, err := Effective(Layers{
		Defaults: def, Name: "node.yaml", File: []byte("listen: ':2'\ngossip: ':3'\nlog: {level: debug}\nlabels: {bench: a}\n"),
		Env: env, Flags: map[string]string{"listen": ":9", "labels.rack": "7"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n.Listen != ":9" || n.Gossip != ":3" || n.Log.Level != "warn" || !n.Runs("process") || n.Labels["rack"] != "7" || n.Labels["bench"] != "a" {
		t.Fatalf("%+v", n)
	}
	got := map[string]Setting{}
	for _, s := range all {
		got[s.Key] = s
	}
	for _, want := range []Setting{
		{"data_dir", "/var/lib/forgeyard-node", FromDefault, ""},
		{"listen", ":9", FromFlag, "--listen"},
		{"gossip", ":3", FromFile, "node.yaml:2:9"},
		{"log.level", "warn", FromEnv, "FORGEYARD_LOG_LEVEL"},
		{"executors", "[sandbox, process]", FromEnv, "FORGEYARD_EXECUTORS"},
		{"labels.bench", "a", FromFile, "node.yaml:4:17"},
		{"labels.rack", "7", FromFlag, "--labels-rack"},
		{"cas.reserve", "0", FromDefault, ""},
	} {
		if got[want.Key] != want {
			t.Errorf("%+v, want %+v", got[want.Key], want)
		}
	}
	_, _, err = Effective(Layers{Defaults: def, Env: map[string]string{"log.level": "loud"}, Flags: map[string]string{"http": "x"}})
	if err == nil || err.Error() != "FORGEYARD_LOG_LEVEL: log.level: \"loud\" is unknown; allowed: debug, info, warn, error" {
		t.Fatal(err)
	}
	if len(DefaultNode().Executors) != 1 || len(def.Executors) != 1 {
		t.Fatal("the defaults were written to")
	}
}

// TestReload: RA-359, RA-360, RA-362.
func TestReload(t *testing.T) {
	old, err := ParseNode("n", []byte(fullNode))
	if err != nil {
		t.Fatal(err)
	}
	now, err := ParseNode("n", []byte(strings.NewReplacer("debug, format", "info, format", "max_jobs: 2", "max_jobs: 3", "10.0.0.5:7444", ":1", "{bench: a, ", "{").Replace(fullNode)))
	if err != nil {
		t.Fatal(err)
	}
	live, restart := Reload(old, now)
	if strings.Join(live, " ") != "labels.bench limits.max_jobs log.level" || strings.Join(restart, " ") != "listen" {
		t.Fatal(live, restart)
	}
	next, err := TakeOver(old, now)
	if err != nil || next.Listen != old.Listen || next.Limits.MaxJobs != 3 || next.Log.Level != "info" || next.Log.Format != old.Log.Format {
		t.Fatalf("%v %+v", err, next)
	}
	before, after := []Setting{{Key: "listen", Value: old.Listen, Source: FromFile}}, []Setting{{Key: "listen", Value: now.Listen, Source: FromFlag}, {Key: "limits.max_jobs", Value: "3", Source: FromEnv}}
	for _, s := range InForce(next, before, after) {
		if s.Key == "listen" && (s.Value != old.Listen || s.Source != FromFile) || s.Key == "limits.max_jobs" && s.Source != FromEnv {
			t.Errorf("%+v", s)
		}
	}
	now.Limits.MaxJobs, old.Users = 1000, UsersConfig{First: 5000, Count: 10}
	if _, err := TakeOver(old, now); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("more jobs than the running node has users: %v", err)
	}
}

// What TakeOver takes is what Reload calls live, key by key: nothing needs a restart
// afterwards that is not named, and nothing is named that was not taken.
func TestTakeOverTakesWhatIsLive(t *testing.T) {
	full, err := ParseNode("n", []byte(fullNode))
	if err != nil {
		t.Fatal(err)
	}
	old, now := DefaultNode(), full
	now.Users = UsersConfig{} // so that both fit together
	next, err := TakeOver(old, now)
	if err != nil {
		t.Fatal(err)
	}
	taken, more := Reload(old, next)
	if len(more) > 0 {
		t.Errorf("taken although it needs a restart: %v", more)
	}
	left, restart := Reload(next, now)
	if len(left) > 0 {
		t.Errorf("live and not taken: %v", left)
	}
	live, waiting := Reload(old, now)
	if !slices.Equal(live, taken) || !slices.Equal(waiting, restart) || len(live) < 10 || len(waiting) < 10 {
		t.Errorf("%v is live and %v taken; %v waits and %v is left", live, taken, waiting, restart)
	}
}

// RA-145: how often a runner is heard is the site's to say, within what its leases can bear.
func TestSiteDefaultsAndBounds(t *testing.T) {
	s, err := ParseSite("site.yaml", []byte("lease: {ttl: 9s, renew: 3s, drift: 0.02}\nvoters: 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Lease.TTL != 9*time.Second || s.Lease.Drift != 20_000 || s.Voters != 5 || s.Durability.Copies != 2 || s.Lease.Reassign() != 9*time.Second+2*time.Minute {
		t.Fatalf("%+v", s)
	}
	if d := DefaultSite(); d.Validate() != nil || d.Lease.TTL != 15*time.Second || d.Lease.Renew != 5*time.Second || d.Voters != 3 {
		t.Fatalf("decision 19: %+v", d)
	}
	for in, want := range map[string]string{
		"lease: {renew: 6s}":             `s:1:16: lease.renew: 6s is more than a third of lease.ttl 15s: two lost renewals would cost the lease`,
		"lease: {ttl: 0}":                "s:1:8: lease.renew: 5s is more than a third of lease.ttl 0s: two lost renewals would cost the lease\ns:1:14: lease.ttl: 0s is not in [1s, 10m0s]",
		"lease: {drift: 0.5}":            `s:1:16: lease.drift: 0.5 is not in [0, 0.1]`,
		"lease: {drift: 0.00000001}":     `s:1:16: lease.drift: "0.00000001" is not a ratio; allowed: a decimal such as 0.01, with at most six places`,
		"lease: {reassign_after: 1s}":    `s:1:25: lease.reassign_after: 1s is not in [15s, 24h0m0s]`,
		"voters: 4":                      `s:1:9: voters: 4; allowed: 1, 3, 5, 7`,
		"durability: {copies: 0}":        `s:1:22: durability.copies: 0 is not in [1, 7]`,
		"lease: {ttl: 10}":               `s:1:14: lease.ttl: 10 is a number; a duration such as 30s or 10m is expected`,
		"durability: {accept_fewer: no}": `s:1:28: durability.accept_fewer: "no" is a string; true or false is expected`,
	} {
		_, err := ParseSite("s", []byte(in))
		if forgeyard.KindOf(err) != forgeyard.Invalid || err.Error() != want {
			t.Errorf("%s\n got: %v\nwant: %s", in, err, want)
		}
	}
}

func TestSiteGetAndSet(t *testing.T) {
	s := DefaultSite()
	for _, k := range SiteKeys() {
		v, err := s.Get(k)
		if err != nil {
			t.Fatal(err)
		}
		same, err := s.Set(k, v)
		if err != nil || same != s {
			t.Errorf("%s=%s does not survive: %v", k, v, err)
		}
	}
	s2, err := s.Set("durability.accept_fewer", "true")
	if err != nil || !s2.Durability.AcceptFewer || s.Durability.AcceptFewer {
		t.Fatalf("%v %+v", err, s2)
	}
	if _, err := s.Set("lease.ttl", "1s"); err == nil || err.Error() != "site config: lease.renew: 5s is more than a third of lease.ttl 1s: two lost renewals would cost the lease" {
		t.Error(err)
	}
	if _, err := s.Set("lease.tll", "1s"); forgeyard.KindOf(err) != forgeyard.NotFound {
		t.Error(err)
	}
	if _, err := s.Set("voters", "many"); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Error(err)
	}
}

// TestSiteEncodingIsStable: the log of an older build must decode.
func TestSiteEncodingIsStable(t *testing.T) {
	const golden = "a501a5011b000000037e11d600021b000000012a05f200031b0000001bf08eb000040005192710020303a2010202f404a1010205a1011b0000001000000000"
	b := DefaultSite().Encode()
	if got := hex.EncodeToString(b); got != golden {
		t.Fatalf("the encoding changed:\n%s", got)
	}
	back, err := DecodeSite(b)
	if err != nil || back != DefaultSite() {
		t.Fatalf("%v %+v", err, back)
	}
	bad := DefaultSite()
	bad.Voters = 2
	if _, err := DecodeSite(bad.Encode()); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal(err)
	}
}

func TestRatioStretchesUpwards(t *testing.T) {
	for _, c := range []struct {
		r       Ratio
		d, want time.Duration
	}{{10_000, 15 * time.Second, 15150 * time.Millisecond}, {0, time.Hour, time.Hour}, {1, 1, 2}, {100_000, maxKeep, maxKeep + maxKeep/10}} {
		if got := c.r.Stretch(c.d); got != c.want {
			t.Errorf("%v by %v: %v, want %v", c.d, c.r, got, c.want)
		}
	}
}

func TestLoopback(t *testing.T) {
	for in, want := range map[string]bool{"127.0.0.1:1": true, "localhost:0": true, "[::1]:5": true, "127.9.9.9:1": true, ":7440": false, "0.0.0.0:1": false, "10.0.0.1:1": false, "127.0.0.1.evil.org:1": false, "x": false} {
		if Loopback(in) != want {
			t.Errorf("%s: %v", in, !want)
		}
	}
}

func FuzzParseNode(f *testing.F) {
	f.Add([]byte(fullNode), "listen", ":1")
	f.Add([]byte("limits: {}"), "limits.cpu", "2")
	f.Fuzz(func(t *testing.T, data []byte, key, value string) {
		flags := map[string]string{}
		if key != "" {
			flags[key] = value
		}
		n, all, err := Effective(Layers{Defaults: DefaultNode(), File: data, Flags: flags})
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Invalid {
				t.Fatal(err)
			}
			return
		}
		if n.Validate() != nil || len(all) < 20 {
			t.Fatalf("%v %d", n.Validate(), len(all))
		}
	})
}

func FuzzDecodeSite(f *testing.F) {
	f.Add(DefaultSite().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSite(b)
		if err == nil && !bytes.Equal(s.Encode(), b) {
			t.Fatal("a policy with two encodings")
		}
	})
}

package cursor

import (
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
)

// What cargo tells of a build, in the forms that a package's id has had.
const cargoBuilt = `   Compiling c v0.1.0
{"reason":"compiler-artifact","package_id":"path+file:///w/c#0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"name":"c"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///w/c#0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["test"],"name":"whole"},"profile":{"test":true},"executable":"/t/whole-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/c#0.1.0","manifest_path":"/w/c/Cargo.toml","target":{"kind":["lib"],"name":"c"},"profile":{"test":true},"executable":"/t/c-1"}
{"reason":"compiler-artifact","package_id":"path+file:///w/tool#fy-tool@0.2.0","manifest_path":"/w/tool/Cargo.toml","target":{"kind":["bin"],"name":"fy"},"profile":{"test":true},"executable":"/t/fy-1"}
{"reason":"compiler-artifact","package_id":"old 1.0.0 (path+file:///w/old)","manifest_path":"/w/old/Cargo.toml","target":{"kind":["proc-macro"],"name":"old"},"profile":{"test":true},"executable":"/t/old-1"}
{"reason":"build-finished","success":true}
`

// CK-175: the tests of a Rust workspace by their programs, which are named as nextest names them.
func TestParseCargo(t *testing.T) {
	got, err := ParseCargo([]byte(cargoBuilt))
	want := []RustBinary{{"c", "/t/c-1", "/w/c"}, {"c::whole", "/t/whole-1", "/w/c"}, {"fy-tool::bin/fy", "/t/fy-1", "/w/tool"}, {"old", "/t/old-1", "/w/old"}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%+v %v", got, err)
	}
	tests := got[0].Tests([]byte("a: test\nm::slow: test\nm::b: test\r\nfast: benchmark\n\n3 tests, 1 benchmark\n"), []byte("m::slow: test\n"))
	var ids []string
	for _, x := range tests {
		ids = append(ids, x.ID+" by "+x.Path+" "+strings.Join(x.Args(), " "))
	}
	if said := strings.Join(ids, "; "); said != "c::a by /t/c-1 --exact a --nocapture; c::m::b by /t/c-1 --exact m::b --nocapture" {
		t.Error(said)
	}
	for _, bad := range []string{"{", `{"reason":"compiler-artifact","profile":{"test":true},"executable":"/t/x"}`} {
		if _, err := ParseCargo([]byte(bad)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

const nextestList = `{"rust-build-meta": {"target-directory": "/t"}, "test-count": 5, "rust-suites": {
 "c::bin/fy": {"package-name": "c", "binary-id": "c::bin/fy", "binary-name": "fy", "kind": "bin", "binary-path": "/t/fy-1", "cwd": "/w/c", "status": "listed", "testcases": {
  "same": {"kind": "test", "ignored": false, "filter-match": {"status": "matches"}}}},
 "c": {"package-name": "c", "binary-id": "c", "binary-name": "c", "kind": "lib", "binary-path": "/t/c-1", "cwd": "/w/c", "status": "listed", "testcases": {
  "same": {"kind": "test", "ignored": false, "filter-match": {"status": "matches"}},
  "slow": {"kind": "test", "ignored": true, "filter-match": {"status": "matches"}},
  "not::asked": {"kind": "test", "ignored": true, "filter-match": {"status": "mismatch", "reason": "ignored"}},
  "fast": {"kind": "bench", "ignored": false, "filter-match": {"status": "matches"}}}},
 "skipped": {"package-name": "skipped", "binary-path": "", "cwd": "", "status": "skipped-default-filter", "testcases": {}}}}`

// CK-175: as nextest would run them: what its filters leave, an ignored test that somebody asked
// for included, which runs as what it is.
func TestParseNextest(t *testing.T) {
	got, err := ParseNextest([]byte(nextestList))
	if err != nil || len(got) != 3 || got[0].ID != "c::same" || got[1].ID != "c::slow" || got[2].ID != "c::bin/fy::same" || got[2].Path != "/t/fy-1" || got[2].Dir != "/w/c" {
		t.Fatalf("%+v %v", got, err)
	}
	if args := strings.Join(got[1].Args(), " "); args != "--exact slow --nocapture --ignored" {
		t.Error(args)
	}
	for _, bad := range []string{"", "[]", `{"test-count": 0}`, strings.Replace(nextestList, `"binary-path": "/t/c-1"`, `"binary-path": ""`, 1)} {
		if _, err := ParseNextest([]byte(bad)); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%.60s: %v", bad, err)
		}
	}
}

// What is read of other programs is tests, each with a program and a folder, or an error.
func FuzzParseRust(f *testing.F) {
	f.Add([]byte(cargoBuilt))
	f.Add([]byte(nextestList))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := ParseCargo(b); err == nil {
			for _, x := range got {
				if x.Path == "" || x.Dir == "" {
					t.Fatalf("%+v", x)
				}
			}
		}
		if got, err := ParseNextest(b); err == nil {
			for _, x := range got {
				if x.Path == "" || x.Dir == "" || !strings.HasSuffix(x.ID, "::"+x.Name) {
					t.Fatalf("%+v", x)
				}
			}
		}
	})
}

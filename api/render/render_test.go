package render

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	forgeyardv1 "github.com/forgeyard/forgeyard-node/api/forgeyard/v1"
)

func TestConventions(t *testing.T) {
	m := &forgeyardv1.SiteStatus{
		Site: &forgeyardv1.SiteStatus_SiteRef{Id: "01", Name: "a \"b\"", Incarnation: 1 << 60},
		Connectivity: &forgeyardv1.Connectivity{State: "online", Used: durationpb.New(90 * time.Second),
			Since: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.FixedZone("x", 3600)))},
		Members: []*forgeyardv1.Member{{Name: "n", Labels: map[string]string{"b": "2", "a": "1"}}},
	}
	var one, pretty strings.Builder
	if err := NDJSON(&one, m); err != nil {
		t.Fatal(err)
	}
	if err := JSON(&pretty, m); err != nil {
		t.Fatal(err)
	}
	if strings.Count(one.String(), "\n") != 1 || !strings.HasSuffix(one.String(), "}\n") {
		t.Fatalf("not one line: %q", one.String())
	}
	for _, text := range []string{one.String(), pretty.String()} {
		var v struct {
			Site         struct{ Incarnation uint64 }
			Connectivity map[string]any
			Voters       []string
			Members      []map[string]any
			AppliedIndex *uint64 `json:"applied_index"`
			AsOf         *string `json:"as_of"`
		}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		switch {
		case v.Site.Incarnation != 1<<60:
			t.Errorf("64-bit numbers are numbers: %s", text)
		case v.Connectivity["used"] != "1m30s" || v.Connectivity["since"] != "2026-01-02T02:04:05.006Z":
			t.Errorf("%v", v.Connectivity)
		case v.Voters == nil:
			t.Errorf("an empty list is a list: %s", text)
		case v.AppliedIndex == nil || v.AsOf != nil:
			t.Errorf("zero scalars are written, messages that are not set are not: %s", text)
		case v.Members[0]["draining"] != false:
			t.Errorf("%v", v.Members[0])
		}
	}
}

func TestList(t *testing.T) {
	var b strings.Builder
	if err := List(&b, []*forgeyardv1.Job{}); err != nil || b.String() != "[]\n" {
		t.Fatalf("%q %v", b.String(), err)
	}
}

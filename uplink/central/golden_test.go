package central

import (
	"reflect"
	"testing"

	"github.com/forgeyard/forgeyard-node/internal/cborx"
	"github.com/forgeyard/forgeyard-node/internal/golden"
	"github.com/forgeyard/forgeyard-node/uplink/reckon"
)

// TestRowsOfVersion1 holds every kind of row of the daemon's file still.
func TestRowsOfVersion1(t *testing.T) {
	rows := []any{&Site{}, &ticketRow{}, &Job{}, &recordRow{}, &auditRow{}}
	var today []golden.Row
	for _, v := range rows {
		golden.Fill(t, v, "Job.End", "Grant.End", "Connectivity.NoReplace", "Contact.Still", "Result.Told", "Result.Overran", "Result.Diagnostics", "Resume.Isolation", "Resume.Profile", "CheckpointDecl.Results") // those came later
		today = append(today, golden.Row{Name: reflect.TypeOf(v).Elem().Name(), Bytes: cborx.Marshal(v)})
	}
	for i, row := range golden.Rows(t, "testdata/rows-v1.hex", today) {
		got := reflect.New(reflect.TypeOf(rows[i]).Elem()).Interface()
		if err := cborx.Unmarshal(row.Bytes, got); err != nil || !reflect.DeepEqual(got, rows[i]) {
			t.Errorf("%s: %+v %v", row.Name, got, err)
		}
	}
}

// TestLaterRows holds what came to version 1 still, each in its row.
func TestLaterRows(t *testing.T) {
	row := Site{ID: "s", Contact: Contact{At: 1, Still: []reckon.Still{{Grant: "g", Status: "unknown", Reason: "n2 fell silent"}}}}
	was := golden.Rows(t, "testdata/rows-later.hex", []golden.Row{{Name: "Site", Bytes: cborx.Marshal(row)}})
	var got Site
	if err := cborx.Unmarshal(was[0].Bytes, &got); err != nil || !reflect.DeepEqual(got, row) {
		t.Errorf("%+v %v", got, err)
	}
}

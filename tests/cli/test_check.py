import json
import sys

from configs.schema import DataSchema
from fedmvc_client.cli import app as client
from fedmvc_server.synthesize_vertical import synthesize_vertical
from tests.cli.commands import call, files_in, run_script, write_plan


def test_check_counts_what_a_run_would_find(pristine):
    site = pristine / "st-anna"
    before = files_in(pristine)

    ended = call(client, "check", "--site", site)

    assert (ended.code, ended.err) == (0, "")
    schema = DataSchema.load(site / "schema.toml")
    assert ended.out.splitlines() == [
        "site 'st-anna': 512 rows, 2 views",
        f"  ecg: 2 columns, schema {schema.schema_hash('ecg')[:8]}, 0 rows lack it",
        f"  imaging: 2 columns, schema {schema.schema_hash('imaging')[:8]}, 0 rows lack it",
    ]
    assert files_in(pristine) == before


def test_json_is_one_object_and_nothing_else(pristine, tmp_path):
    plan = write_plan(tmp_path)

    ended = run_script("fedmvc-client", "check", plan, "--json", cwd=pristine / "st-anna")

    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out)
    assert (told["site"], told["rows"]) == ("st-anna", 512)
    assert len(told["plan_id"]) == 64
    assert list(told["views"]) == ["ecg", "imaging"]


def test_check_of_a_plan_that_does_not_fit_names_the_key(pristine, tmp_path):
    plan = write_plan(tmp_path, 'method = "fedhk-mvfc"\n')

    ended = call(client, "check", plan, "--site", pristine / "st-anna")

    assert ended.code == 2
    assert "plan.toml: 'n_clusters' is missing" in ended.sentence


def test_check_does_not_wait_for_torch(pristine):
    # importing torch and scikit-learn takes seconds, and a check on the CPU needs neither
    program = (
        "import sys; from fedmvc_client.cli import main; code = main(); "
        'sys.exit(f\'loaded: {sys.modules.keys() & {"torch", "sklearn", "flwr"}}, {code}\')'
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", program, "check", "--site", str(pristine / "st-anna")],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stderr == "loaded: set(), 0\n"


def test_a_vertical_plan_is_checked_against_the_site_too(tmp_path):
    synthesize_vertical(tmp_path / "sites", sites=2, n=80)
    site = tmp_path / "sites" / "st-anna"
    plan = tmp_path / "plan.toml"
    plan.write_text('method = "tensor-fmvc"\nn_clusters = 4\n')

    fine = call(client, "check", plan, "--site", site)
    (site / "state" / "linkage.key").unlink()
    keyless = call(client, "check", plan, "--site", site)

    assert fine.code == 0
    assert keyless.code == 2
    assert "linkage key 'linkage.key' does not exist" in keyless.sentence


def test_a_record_without_an_observed_cell_lacks_the_view(tmp_path):
    synthesize_vertical(tmp_path / "sites", sites=2, n=80)
    site = tmp_path / "sites" / "st-anna"
    header, *rows = (site / "ecg.csv").read_text().splitlines()
    blank = [row.split(",")[0] + "," * header.count(",") for row in rows[:7]]
    (site / "ecg.csv").write_text("\n".join([header, *blank, *rows[7:]]) + "\n")

    ended = call(client, "check", "--site", site, "--json")

    assert json.loads(ended.out)["views"]["ecg"]["rows_lacking_it"] >= 7


def test_a_view_that_a_vertical_run_would_refuse_is_refused_before(tmp_path):
    synthesize_vertical(tmp_path / "sites", sites=2, n=80)
    site = tmp_path / "sites" / "st-anna"
    header, *rows = (site / "ecg.csv").read_text().splitlines()
    same = [row.split(",")[0] + ",60,150,90,400" for row in rows]
    (site / "ecg.csv").write_text("\n".join([header, *same]) + "\n")
    plan = tmp_path / "plan.toml"
    plan.write_text('method = "tensor-fmvc"\nn_clusters = 4\n')

    ended = call(client, "check", plan, "--site", site)

    assert ended.code == 3
    assert "all 80 rows of view 'ecg' of site 'st-anna' are identical" in ended.sentence


def test_a_selection_plan_meets_the_runs_own_refusals(pristine, tmp_path):
    site = pristine / "st-anna"
    before = files_in(pristine)
    text = 'method = "fed-mufsht"\nn_clusters = {}\n[mufsht]\ntext = {}\n'

    fine = call(client, "check", write_plan(tmp_path, text.format(4, "false")), "--site", site)
    many = call(client, "check", write_plan(tmp_path, text.format(513, "false")), "--site", site)
    words = call(client, "check", write_plan(tmp_path, text.format(4, "true")), "--site", site)

    assert (fine.code, fine.err) == (0, "")
    assert many.code == 3
    assert "site 'st-anna' has 512 rows but n_clusters is 513" in many.sentence
    assert words.code == 3
    assert "view 'imaging' of site 'st-anna' has" in words.sentence
    assert "negative cells and text may have 0" in words.sentence
    assert files_in(pristine) == before


def test_a_plan_on_selected_columns_needs_the_selection(pristine, tmp_path):
    plan = write_plan(
        tmp_path, 'method = "fedhk-mvfc"\nn_clusters = 4\nfeatures = "1234abcd@0.4"\n'
    )

    ended = call(client, "check", plan, "--site", pristine / "st-anna")

    assert ended.code == 3
    assert "site 'st-anna' has no selection of run 1234abcd in its results" in ended.sentence

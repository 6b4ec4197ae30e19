import pytest

pytest.register_assert_rewrite("tests.asr.decoded_rows", "tests.asr.recognition")  # so that they say what differs

# The public names, each loaded from its module when it is first used (see __init__.py).
from .auditing.auditor import Auditor as Auditor
from .auditing.baselines import compare_baselines as compare_baselines
from .auditing.files import audit_files as audit_files
from .auditing.pipeline import audit as audit
from .base.libraries import load_credit_g as load_credit_g
from .analysis.calibration import FragilityCalibratedClassifier as FragilityCalibratedClassifier
from .audits import Certificates as Certificates, open_audit as open_audit
from .deciding import Guard as Guard, evaluate_missing as evaluate_missing
from .analysis.displays import CollapseDisplay as CollapseDisplay, FragilityMapDisplay as FragilityMapDisplay
from .base.errors import (
    DataError as DataError,
    FragilityError as FragilityError,
    ModelError as ModelError,
    ProtocolError as ProtocolError,
    VerificationError as VerificationError,
)
from .evidence.modes import FailureModes as FailureModes
from .gate import Gate as Gate, Rule as Rule
from .analysis.hardening.classifier import choose_rate as choose_rate
from .analysis.hardening.classifier import HardenedClassifier as HardenedClassifier
from .analysis.hardening.training import harden as harden
from .integrations.mlflow_logging import log_audit as log_audit
from .models import Model as Model
from .models.loading import load_model as load_model
from .questions.any_value import (
    find_any_value_budgets as find_any_value_budgets,
    find_safe_sets as find_safe_sets,
)
from .questions.modes.intervals import find_stability_intervals as find_stability_intervals
from .questions.modes.losses import assess_modes as assess_modes
from .packing import pack as pack, verify_pack as verify_pack
from .parity import check_parity as check_parity
from .analysis.policy import ReviewPolicy as ReviewPolicy
from .protocol import Protocol as Protocol
from .analysis.ranking.evaluating import Baselines as Baselines, evaluate as evaluate
from .questions.reliability.failure import assess_reliability as assess_reliability
from .report import Report as Report
from .analysis.resmlp import ResMLPClassifier as ResMLPClassifier
from .questions.search import find_failing_sets as find_failing_sets
from .analysis.segments import share_by as share_by
from .questions.stress.declaration import Stress as Stress
from .questions.stress.labels import label_brittle as label_brittle
from .questions.stress.stressors import (
    Donor as Donor,
    Dropout as Dropout,
    Mask as Mask,
    Noise as Noise,
    Outages as Outages,
)
from .trust import (
    generate_keys as generate_keys,
    prove as prove,
    sign as sign,
    verify_proof as verify_proof,
    verify_signature as verify_signature,
)
from .verification.verifying import verify as verify
from .version import __version__ as __version__
from .apps.watching import watch as watch
